use std::net::Ipv4Addr;
use std::num::NonZeroU64;

use fake_ibverbs::{DeviceSpec, GidSpec, PortSpec};
use gdr_rdma::{
    Access, Buffer, Device, Error, Feature, GidType, Mtu, RegistrationMethod, VerbsOptions,
};

use crate::fixture::*;

fn gid(index: u32, text: &str, kind: u32) -> GidSpec {
    let gid: std::net::Ipv6Addr = text.parse().unwrap();
    GidSpec {
        index,
        gid: gid.octets(),
        kind,
        interface: 2,
    }
}

#[test]
fn the_gid_of_roce_v2_over_ipv4_is_chosen_and_the_reason_kept() {
    let fake = clean_fake();
    let device = open(&fake, &roce());
    let chosen = device.gid().unwrap();
    assert_eq!(
        (chosen.entry.index, chosen.entry.kind),
        (3, GidType::RoceV2)
    );
    assert!(chosen.why.contains("RoCE v2"), "{}", chosen.why);
    assert!(device.address().is_ipv4());
}

#[test]
fn what_hardware_sends_has_no_limit() {
    let fake = clean_fake();
    let device = open(&fake, &roce());
    let refused = device.limit_sending(NonZeroU64::new(1 << 30)).unwrap_err();
    assert!(matches!(refused, Error::NotOffered(Feature::SendLimit)));
    let text = refused.to_string();
    assert!(text.contains("no limit of the rate"), "{text}");
}

#[test]
fn unknown_gid_types_are_skipped() {
    let fake = clean_fake();
    let mut spec = roce();
    spec.ports[0].gids = vec![
        gid(0, "2001:db8::1", 9),
        gid(4, "fe80::1", 2),
        gid(7, "2001:db8::2", 2),
    ];
    let device = open(&fake, &spec);
    let chosen = device.gid().unwrap();
    assert_eq!(chosen.entry.index, 7);
    assert_eq!(device.address().ip().to_string(), "2001:db8::2");
}

#[test]
fn a_requested_gid_is_used_whatever_its_type() {
    let fake = clean_fake();
    let spec = roce();
    fake.add(spec.clone());
    let options = options_of(&fake).device(&spec.name).gid_index(1);
    let device = Device::verbs(&options).unwrap();
    let chosen = device.gid().unwrap();
    assert!(chosen.entry.is_link_local());
    assert!(chosen.why.contains("requested"), "{}", chosen.why);
    let options = options_of(&fake).device(&spec.name).gid_index(99);
    let text = Device::verbs(&options).unwrap_err().to_string();
    assert!(text.contains("no GID 99"), "{text}");
}

#[test]
fn the_first_active_port_or_the_requested_one_is_chosen() {
    let fake = clean_fake();
    let mut spec = roce();
    spec.ports[0].state = 1;
    spec.ports.push(PortSpec {
        active_mtu: 3,
        ..PortSpec::ethernet(Ipv4Addr::new(10, 2, 0, 1))
    });
    let device = open(&fake, &spec);
    assert_eq!(device.address().ip().to_string(), "10.2.0.1");
    assert_eq!(device.path_mtu(device.address().ip()).unwrap(), Mtu::B1024);
    let options = options_of(&fake).device(&format!("{}:1", spec.name));
    let text = Device::verbs(&options).unwrap_err().to_string();
    assert!(text.contains("port 1"), "{text}");
}

#[test]
fn relaxed_ordering_is_requested_exactly_where_the_options_enable_it() {
    let fake = clean_fake();
    for relaxed in [false, true] {
        let spec = roce();
        fake.add(spec.clone());
        let mut options = options_of(&fake).device(&spec.name);
        if relaxed {
            options = options.relaxed_ordering();
        }
        let device = Device::verbs(&options).unwrap();
        let buffer = Buffer::host(4096).unwrap();
        let _region = device
            .protection_domain()
            .register(&buffer, Access::all())
            .unwrap();
        let made = calls(&fake, &spec.name, &["ibv_reg_mr", "ibv_reg_mr_iova2"]);
        assert_eq!(made.len(), 1, "{made:?}");
        let asked = made[0].detail.contains("access 0x10000");
        assert_eq!(asked, relaxed, "{made:?}");
    }
}

#[test]
fn unknown_mtus_and_link_layers_of_a_newer_kernel_are_accepted() {
    let fake = clean_fake();
    let mut spec = DeviceSpec {
        node_type: 99,
        transport: 98,
        ..roce()
    };
    spec.ports[0].active_mtu = 42;
    spec.ports[0].max_mtu = 43;
    let device = open(&fake, &spec);
    let path = device.path_mtu(device.address().ip()).unwrap();
    assert_eq!(path, Mtu::B256);
}

#[test]
fn memory_is_paged_on_demand_or_refused_by_name_if_the_device_cannot() {
    let fake = clean_fake();
    fake.add(DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 0, 0, 1)));
    fake.add(DeviceSpec::rxe("rxe0", Ipv4Addr::new(10, 0, 0, 2)));
    let options = |name: &str| {
        VerbsOptions::new()
            .library(fake.verbs())
            .device(name)
            .on_demand_paging()
    };
    let device = Device::verbs(&options("mlx5_0")).unwrap();
    let buffer = Buffer::host(4096).unwrap();
    let region = device
        .protection_domain()
        .register(&buffer, Access::LOCAL_WRITE)
        .unwrap();
    assert_eq!(region.route(), RegistrationMethod::OnDemand);
    let error = Device::verbs(&options("rxe0")).unwrap_err().to_string();
    assert!(
        error.contains("rxe0 does not support on-demand paging"),
        "{error}"
    );
}
