use std::mem::MaybeUninit;

use fake_ibverbs::{DeviceSpec, Fake, GidSpec, PortSpec};
use gdr_verbs_sys::*;

use crate::connection::{FIRST, open};

#[test]
fn both_queries_return_the_limits_of_a_device() {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("new", FIRST));
    fake.add(DeviceSpec {
        extended_queries: false,
        ..DeviceSpec::roce("old", FIRST)
    });
    let verbs = fake.verbs();
    for (name, odp) in [("new", 1), ("old", 0)] {
        let context = open(verbs, name);
        // SAFETY: the context is open.
        let attr = unsafe { verbs.ibv_query_device_ex(context) }.unwrap();
        assert_eq!(attr.orig_attr.vendor_part_id, 4129);
        assert_eq!(attr.odp_caps.general_caps, odp, "{name}");
        // SAFETY: as above.
        let port = unsafe { verbs.query_port(context, 1) }.unwrap();
        assert_eq!(port.state, ibv_port_state::IBV_PORT_ACTIVE);
        assert_eq!(port.link_layer, IBV_LINK_LAYER_ETHERNET);
        // SAFETY: as above.
        let none = unsafe { verbs.query_port(context, 2) }.unwrap_err();
        assert_eq!(none.errno(), Errno::EINVAL);
        // SAFETY: the context is open and unused.
        unsafe { verbs.ibv_close_device(context) }.unwrap();
    }
    fake.assert_clean();
}

#[test]
fn gids_are_found_by_index_and_as_a_table() {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("mlx5_0", FIRST));
    let verbs = fake.verbs();
    let context = open(verbs, "mlx5_0");
    let mut room = [MaybeUninit::uninit(); 8];
    // SAFETY: the context is open.
    let table = unsafe { verbs.query_gid_table(context, &mut room) }.unwrap();
    let kinds: Vec<_> = table
        .iter()
        .map(|entry| (entry.gid_index, entry.gid_type))
        .collect();
    assert_eq!(kinds, [(0, 1), (1, 2), (2, 1), (3, 2)]);
    // SAFETY: any bytes are a GID.
    assert_eq!(unsafe { table[3].gid.raw }[12..], FIRST.octets());
    // SAFETY: the context is open.
    let empty = unsafe { verbs.query_gid(context, 1, 9) }.err();
    assert_eq!(empty.map(|error| error.errno()), Some(Errno(libc::ENODATA)));
    // SAFETY: the context is open and unused.
    unsafe { verbs.ibv_close_device(context) }.unwrap();
}

#[test]
fn unknown_values_of_a_newer_kernel_are_returned() {
    let fake = Fake::load();
    let gid = GidSpec {
        index: 0,
        gid: [7; 16],
        kind: 42,
        interface: 0,
    };
    fake.add(DeviceSpec {
        node_type: 99,
        transport: 98,
        atomics: 97,
        ports: vec![PortSpec {
            state: 96,
            phys_state: 95,
            link_layer: 94,
            max_mtu: 93,
            active_mtu: 92,
            width: 91,
            speed: 90,
            gids: vec![gid],
            ..PortSpec::default()
        }],
        ..DeviceSpec::default()
    });
    let verbs = fake.verbs();
    let context = open(verbs, "mlx5_0");
    // SAFETY: the context is open, and its device exists.
    unsafe {
        assert_eq!(
            (*(*context).device).node_type.to_string(),
            "ibv_node_type 99"
        );
        let port = verbs.query_port(context, 1).unwrap();
        assert_eq!(port.state.to_string(), "ibv_port_state 96");
        assert_eq!(port.active_mtu.to_string(), "ibv_mtu 92");
        let attr = verbs.ibv_query_device_ex(context).unwrap();
        assert_eq!(attr.orig_attr.atomic_cap.to_string(), "ibv_atomic_cap 97");
        let entry = verbs.query_gid(context, 1, 0).unwrap();
        assert_eq!(ibv_gid_type(entry.gid_type).to_string(), "ibv_gid_type 42");
        verbs.ibv_close_device(context).unwrap();
    }
}
