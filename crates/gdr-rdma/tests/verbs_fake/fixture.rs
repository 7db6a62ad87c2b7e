//! Fake devices, and connections between them.

use std::net::Ipv4Addr;
use std::ops::Deref;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

pub(crate) use conformance::{Side, bytes, fill, pattern, soon};
use fake_ibverbs::{Call, DeviceSpec, Fake, Fault, GpuPath};
use gdr_rdma::{AckTimeout, ConnectionOptions, Device, Mtu, RetryCount, VerbsOptions};

/// A library that a test must leave clean: at its end no object exists, and no rule of the API was violated.
pub(crate) struct CleanFake(Fake);

pub(crate) fn clean_fake() -> CleanFake {
    CleanFake(Fake::load())
}

impl Deref for CleanFake {
    type Target = Fake;

    fn deref(&self) -> &Fake {
        &self.0
    }
}

impl Drop for CleanFake {
    fn drop(&mut self) {
        if !thread::panicking() {
            self.0.assert_clean();
        }
    }
}

/// Returns a new number for names and addresses.
fn number() -> u8 {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Returns a RoCE device with a unique name and address.
pub(crate) fn roce() -> DeviceSpec {
    let number = number();
    let address = Ipv4Addr::new(10, 1, 0, number);
    DeviceSpec::roce(&format!("mlx5_{number}"), address)
}

/// Returns a device that refuses GPU memory by every method.
pub(crate) fn without_gpu_memory() -> DeviceSpec {
    DeviceSpec {
        dma_buf: GpuPath::Refuses(libc::EOPNOTSUPP),
        peer_memory: GpuPath::Refuses(libc::EFAULT),
        ..roce()
    }
}

/// Returns the options for opening devices of this library.
pub(crate) fn options_of(fake: &Fake) -> VerbsOptions {
    // Registrations have their own tests; other tests count calls.
    VerbsOptions::new()
        .library(fake.verbs())
        .skip_verification()
}

/// Adds the device to the fake and opens it.
pub(crate) fn open(fake: &Fake, spec: &DeviceSpec) -> Device {
    fake.add(spec.clone());
    Device::verbs(&options_of(fake).device(&spec.name)).unwrap()
}

/// Returns the calls of these verbs on a device, in order.
pub(crate) fn calls(fake: &Fake, name: &str, verbs: &[&str]) -> Vec<Call> {
    let mut calls = fake.calls(verbs);
    calls.retain(|call| call.device == name);
    calls
}

/// Verbs that post to a send queue.
pub(crate) const POSTING: [&str; 2] = ["ibv_post_send", "ibv_wr_complete"];

/// Sets whether transfers that begin at the device are held back.
pub(crate) fn hold(fake: &Fake, name: &str, held: bool) {
    fake.fault(name, Fault::Hold(held));
}

pub(crate) fn set_port(fake: &Fake, name: &str, port: u8, state: u32) {
    fake.fault(name, Fault::Port(port, state));
}

/// Returns a side on a new device.
pub(crate) fn side(fake: &Fake, spec: &DeviceSpec) -> Side {
    Side::on(open(fake, spec))
}

/// Returns options with which a request times out after 4 attempts of 2 ms each.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions {
        timeout: AckTimeout::new(9),
        retry_count: RetryCount::new(3),
        ..ConnectionOptions::new(Mtu::B4096)
    }
}

pub(crate) fn connect(a: &Side, b: &Side) {
    conformance::connect(a, b, &options());
}

/// Returns two connected sides on devices of these kinds.
pub(crate) fn connected(fake: &Fake, a: &DeviceSpec, b: &DeviceSpec) -> (Side, Side) {
    let sides = (side(fake, a), side(fake, b));
    connect(&sides.0, &sides.1);
    sides
}

/// Returns two connected sides on devices with all features.
pub(crate) fn sides(fake: &Fake) -> (Side, Side) {
    connected(fake, &roce(), &roce())
}
