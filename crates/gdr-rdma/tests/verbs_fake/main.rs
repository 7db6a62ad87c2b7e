//! The verbs provider against a libibverbs without devices, which moves real bytes.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod operations;

use std::net::Ipv4Addr;
use std::time::Duration;

use fake_ibverbs::{DeviceSpec, Fake};
use gdr_rdma::{Deadline, Device, VerbsOptions};

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(20))
}

/// A library with one RoCE device.
fn one_device() -> Fake {
    let fake = Fake::load();
    fake.add(DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 0, 0, 1)));
    fake
}

fn open(fake: &Fake) -> Device {
    Device::verbs(&VerbsOptions::new().library(fake.verbs())).unwrap()
}
