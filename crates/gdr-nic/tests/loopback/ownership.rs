//! The lifetimes of devices, queue pairs and memory.

use gdr_rdma::{SendRequest, WcStatus, WrId};

use crate::fixture::*;

#[test]
fn a_region_that_is_deregistered_during_a_message_ends_the_message() {
    let Some((a, b)) = sides() else { return };
    let source = a.memory(64 << 20);
    for _ in 0..4 {
        let target = b.memory(64 << 20);
        let write = SendRequest::write(WrId(0), target.remote().at(0))
            .segment(source.segment(0, 64 << 20).unwrap());
        a.pair.post_send(write).unwrap();
        while target.buffer().load_u8(0).is_ok() && b.device.counters().packets_received < 64 {
            a.device.progress();
        }
        drop(target);
        let status = a.status();
        assert!(
            matches!(
                status,
                WcStatus::RemoteAccess | WcStatus::Success | WcStatus::WrFlushed
            ),
            "{status}"
        );
    }
}

#[test]
fn a_dropped_device_releases_its_descriptors_thread_and_port() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let threads = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.trim_end() == "gdr-nic")
            .count()
    };
    // Other tests of this process open descriptors too, but far fewer than a leak would leave.
    let (before, running) = (open(), threads());
    for _ in 0..150 {
        let Some(device) = device(FIRST) else { return };
        let port = device.address().port();
        drop(device);
        // The port is free again.
        let options = gdr_rdma::SoftOptions::new(FIRST).port(port);
        match gdr_rdma::Device::soft_with(options) {
            // Another test may have taken the port in between.
            Ok(_)
            | Err(gdr_rdma::Error::Nic(gdr_rdma::NicError::Socket(
                gdr_rdma::SocketError::PortInUse { .. },
            ))) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(open() < before + 150, "{before} to {}", open());
    assert!(threads() < running + 100);
}
