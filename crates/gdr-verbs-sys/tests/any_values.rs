//! Values from a device, a kernel or a later release are data: none causes a panic.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::mem::MaybeUninit;

use fake_ibverbs::{DeviceSpec, Fake, Fault, GidSpec, PortSpec};
use gdr_verbs_sys::*;
use proptest::prelude::*;

fn gid() -> impl Strategy<Value = GidSpec> {
    (0..64_u32, any::<[u8; 16]>(), any::<u32>(), any::<u32>()).prop_map(
        |(index, gid, kind, interface)| GidSpec {
            index,
            gid,
            kind,
            interface,
        },
    )
}

fn port() -> impl Strategy<Value = PortSpec> {
    let enums = (
        any::<u32>(),
        any::<u8>(),
        any::<u8>(),
        any::<u32>(),
        any::<u32>(),
    );
    let link = (any::<u16>(), any::<u8>(), any::<u8>());
    let gids = (0..64_u32, proptest::collection::vec(gid(), 0..4));
    (enums, link, gids).prop_map(|(enums, link, gids)| PortSpec {
        state: enums.0,
        phys_state: enums.1,
        link_layer: enums.2,
        max_mtu: enums.3,
        active_mtu: enums.4,
        lid: link.0,
        width: link.1,
        speed: link.2,
        gid_table: gids.0,
        gids: gids.1,
    })
}

fn device() -> impl Strategy<Value = DeviceSpec> {
    let enums = (any::<i32>(), any::<i32>(), any::<u32>());
    let limits = (any::<i32>(), any::<i32>(), any::<u32>(), any::<u32>());
    let ports = proptest::collection::vec(port(), 0..3);
    (enums, limits, any::<bool>(), ports, "\\PC{0,80}").prop_map(
        |(enums, limits, extended_queries, ports, firmware)| DeviceSpec {
            node_type: enums.0,
            transport: enums.1,
            atomics: enums.2,
            max_requests: limits.0,
            max_reads: limits.1,
            vendor_id: limits.2,
            vendor_part_id: limits.3,
            firmware,
            ports,
            extended_queries,
            ..DeviceSpec::default()
        },
    )
}

const CASES: u32 = 64;

/// Opens the only device.
fn open(verbs: &Verbs) -> *mut ibv_context {
    let devices = verbs.devices().unwrap();
    // SAFETY: the list and its devices are alive.
    unsafe { verbs.ibv_open_device(devices.as_slice()[0]) }
        .unwrap()
        .as_ptr()
}

#[test]
fn every_value_of_a_device_is_returned_unchanged() {
    let fake = Fake::load();
    let verbs = fake.verbs();
    proptest!(ProptestConfig::with_cases(CASES), |(spec in device())| {
        fake.add(spec.clone());
        let context = open(verbs);
        // SAFETY: the context is open until the end.
        unsafe {
            let device = &*(*context).device;
            prop_assert_eq!(device.node_type.0, spec.node_type);
            prop_assert!(!device.node_type.to_string().is_empty());
            prop_assert!(!device.transport_type.to_string().is_empty());
            let attr = verbs.ibv_query_device_ex(context).unwrap();
            prop_assert_eq!(attr.orig_attr.max_qp_wr, spec.max_requests);
            prop_assert!(!attr.orig_attr.atomic_cap.to_string().is_empty());
            for (number, port) in (1..).zip(&spec.ports) {
                let attr = verbs.query_port(context, number).unwrap();
                prop_assert_eq!((attr.state.0, attr.active_mtu.0), (port.state, port.active_mtu));
                prop_assert_eq!((attr.link_layer, attr.lid), (port.link_layer, port.lid));
                prop_assert!(!attr.state.to_string().is_empty());
                prop_assert!(!attr.max_mtu.to_string().is_empty());
                for gid in &port.gids {
                    let entry = verbs.query_gid(context, u32::from(number), gid.index);
                    prop_assert_eq!(entry.is_ok(), gid.index < port.gid_table);
                }
            }
            let all: usize = spec.ports.iter().map(|port| port.gids.len()).sum();
            let mut room = [MaybeUninit::uninit(); 16];
            prop_assert_eq!(verbs.query_gid_table(context, &mut room).unwrap().len(), all);
            verbs.ibv_close_device(context).unwrap();
        }
        fake.fault(&spec.name, Fault::Remove);
    });
    fake.assert_clean();
}

#[test]
fn every_errno_of_a_verb_is_returned_unchanged() {
    let fake = Fake::load();
    fake.add(DeviceSpec::default());
    let verbs = fake.verbs();
    let context = open(verbs);
    proptest!(ProptestConfig::with_cases(CASES), |(errno in 1..i32::MAX)| {
        fake.fault("mlx5_0", Fault::Refuse("ibv_alloc_pd".to_owned(), errno, 1));
        // SAFETY: the context is open.
        let error = unsafe { verbs.ibv_alloc_pd(context) }.unwrap_err();
        prop_assert_eq!(error.errno(), Errno(errno));
        prop_assert!(error.to_string().starts_with("ibv_alloc_pd fails: "), "{}", error);
    });
    // SAFETY: the context is open and unused.
    unsafe { verbs.ibv_close_device(context) }.unwrap();
}
