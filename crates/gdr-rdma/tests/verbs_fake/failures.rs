use std::time::{Duration, Instant};

use fake_ibverbs::{DeviceSpec, Fake, Fault, PortSpec};
use gdr_rdma::{
    Access, Buffer, ConnectionOptions, Device, Error, QueuePairOptions, SendRequest, State,
    VerbsError, WcStatus, WrId,
};

use crate::fixture::*;

/// Returns why a device of this kind cannot be opened.
fn refusal(fake: &Fake, spec: &DeviceSpec) -> VerbsError {
    fake.add(spec.clone());
    let error = Device::verbs(&options_of(fake).device(&spec.name)).unwrap_err();
    fake.assert_clean();
    match error {
        Error::Verbs(error) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn a_port_that_goes_down_during_a_transfer_ends_it_before_the_deadline() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    fill(&source, 1);
    hold(&fake, &a.name(), true);
    let write = SendRequest::write(WrId(1), target.remote().at(0))
        .segment(source.segment(0, 4096).unwrap());
    a.pair.post_send(write).unwrap();
    let begun = Instant::now();
    set_port(&fake, &a.name(), 1, 1);
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert_eq!(a.pair.state(), State::Error);
    assert!(bytes(&target).iter().all(|byte| *byte == 0));
}

#[test]
fn requests_to_a_peer_whose_port_went_down_fail() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    set_port(&fake, &b.name(), 1, 1);
    let write =
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RetryExceeded);
}

#[test]
fn a_port_that_is_down_is_reported_with_a_remedy() {
    let fake = clean_fake();
    let mut spec = roce();
    spec.ports[0].state = 1;
    let error = refusal(&fake, &spec);
    assert!(
        matches!(error, VerbsError::PortDown { port: 1, .. }),
        "{error}"
    );
    let text = error.to_string();
    assert!(
        text.contains("IBV_PORT_DOWN") && text.contains("ip link set up"),
        "{text}"
    );
}

#[test]
fn a_port_in_a_state_of_a_newer_kernel_is_shown_as_its_number() {
    let fake = clean_fake();
    let mut spec = roce();
    spec.ports[0].state = 77;
    let text = refusal(&fake, &spec).to_string();
    assert!(text.contains("77"), "{text}");
}

#[test]
fn a_port_without_a_routable_gid_is_reported_with_a_remedy() {
    let fake = clean_fake();
    let mut without = roce();
    without.ports[0].gids.clear();
    let mut link_local = roce();
    link_local.ports[0].gids.truncate(2);
    for spec in [without, link_local] {
        let error = refusal(&fake, &spec);
        assert!(
            matches!(error, VerbsError::NoGid { port: 1, .. }),
            "{error}"
        );
        assert!(error.to_string().contains("ip addr add"), "{error}");
    }
}

#[test]
fn an_unknown_device_name_is_refused_with_the_names_that_exist() {
    let fake = clean_fake();
    let spec = roce();
    fake.add(spec.clone());
    let options = options_of(&fake).device("mlx5_none");
    let text = Device::verbs(&options).unwrap_err().to_string();
    assert!(
        text.contains("`mlx5_none`") && text.contains(&spec.name),
        "{text}"
    );
}

#[test]
fn a_device_without_ports_and_an_unknown_port_are_refused() {
    let fake = clean_fake();
    let none = DeviceSpec {
        ports: Vec::<PortSpec>::new(),
        ..roce()
    };
    let error = refusal(&fake, &none);
    assert!(
        matches!(error, VerbsError::NoSuchPort { ports: 0, .. }),
        "{error}"
    );
    let spec = roce();
    fake.add(spec.clone());
    let options = options_of(&fake).device(&spec.name).port(3);
    let error = Device::verbs(&options).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no port 3"), "{text}");
}

#[test]
fn a_peer_in_another_subnet_is_reported_with_a_remedy() {
    let fake = clean_fake();
    for (errno, words) in [
        (libc::ENETUNREACH, "one subnet or a route"),
        (libc::EHOSTUNREACH, "one subnet or a route"),
        (libc::ETIMEDOUT, "one subnet or a route"),
        (libc::ENODEV, "network namespace"),
    ] {
        let (a, b) = (side(&fake, &roce()), side(&fake, &roce()));
        fake.fault(
            &a.name(),
            Fault::Refuse("ibv_modify_qp RTR".to_owned(), errno, 1),
        );
        let error = a.pair.connect(&b.pair.endpoint(), &options()).unwrap_err();
        assert!(
            matches!(error, Error::Verbs(VerbsError::Route { .. })),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        // Nothing is lost, so another attempt succeeds.
        connect(&a, &b);
    }
}

#[test]
fn memory_beyond_the_limit_names_the_limit() {
    let fake = clean_fake();
    let side = side(&fake, &roce());
    let refusal = Fault::Refuse("ibv_reg_mr".to_owned(), libc::ENOMEM, 1);
    fake.fault(&side.name(), refusal);
    let buffer = Buffer::host(20_000).unwrap();
    let error = side.domain.register(&buffer, Access::all()).unwrap_err();
    let verbs = matches!(
        &error,
        Error::Verbs(VerbsError::Registration { len: 20_000, .. })
    );
    assert!(verbs, "{error}");
    let text = error.to_string();
    assert!(
        text.contains("20000 bytes") && text.contains("ENOMEM"),
        "{text}"
    );
    let _small = side.memory(10_000);
}

#[test]
fn verbs_that_fail_when_objects_are_made_leave_nothing_behind() {
    let fake = clean_fake();
    for verb in [
        "ibv_alloc_pd",
        "ibv_create_comp_channel",
        "ibv_create_cq",
        "ibv_create_qp",
        "ibv_create_qp_ex",
        "mlx5dv_create_qp",
        "ibv_modify_qp INIT",
    ] {
        let spec = DeviceSpec {
            // mlx5 devices create queue pairs with a function of their own.
            scatter_to_cqe: verb == "mlx5dv_create_qp",
            extended_requests: verb == "ibv_create_qp_ex",
            ..roce()
        };
        let device = open(&fake, &spec);
        fake.fault(
            device.name(),
            Fault::Refuse(verb.to_owned(), libc::ENOSPC, 2),
        );
        let domain = device.protection_domain();
        let queue = device.completion_queue(16);
        let error = domain
            .queue_pair(&QueuePairOptions::new(&queue))
            .unwrap_err();
        let text = error.to_string();
        let named = verb.split(' ').next().unwrap_or(verb);
        assert!(text.contains(named) && text.contains("ENOSPC"), "{text}");
    }
}

#[test]
fn a_device_that_cannot_be_opened_is_reported_with_its_name_and_the_reason() {
    let fake = clean_fake();
    for verb in ["ibv_open_device", "ibv_query_device_ex", "ibv_query_port"] {
        let mut spec = roce();
        spec.refusals.insert(verb.to_owned(), libc::EACCES);
        let text = refusal(&fake, &spec).to_string();
        assert!(
            text.contains(&spec.name) && text.contains("EACCES"),
            "{verb}: {text}"
        );
    }
}

#[test]
fn a_status_of_a_newer_kernel_is_a_failure_like_any_other() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    fake.fault(&a.name(), Fault::EndNext(777, 3));
    let write =
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    assert_ne!(a.status(), WcStatus::Success);
}

#[test]
fn a_depth_of_reads_above_the_device_limit_is_refused_with_the_limit() {
    let fake = clean_fake();
    let few = DeviceSpec {
        max_reads: 4,
        ..roce()
    };
    let (a, b) = (side(&fake, &few), side(&fake, &roce()));
    let error = a.pair.connect(&b.pair.endpoint(), &options()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("supports 4 outstanding READs and atomics, not 16"),
        "{text}"
    );
    let fewer = ConnectionOptions {
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        ..options()
    };
    a.pair.connect(&b.pair.endpoint(), &fewer).unwrap();
    b.pair.connect(&a.pair.endpoint(), &fewer).unwrap();
}

#[test]
fn a_device_that_is_removed_ends_its_outstanding_requests() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    hold(&fake, &a.name(), true);
    let write =
        SendRequest::write(WrId(1), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    fake.fault(&a.name(), Fault::Remove);
    assert_eq!(a.status(), WcStatus::WrFlushed);
}

#[test]
fn an_infiniband_port_without_a_lid_is_not_connected() {
    let fake = clean_fake();
    let near = side(&fake, &DeviceSpec::infiniband("ib0", 7));
    let far = side(&fake, &DeviceSpec::infiniband("ib1", 0));
    let error = near
        .pair
        .connect(&far.pair.endpoint(), &options())
        .unwrap_err();
    assert!(error.to_string().contains("subnet manager"), "{error}");
}
