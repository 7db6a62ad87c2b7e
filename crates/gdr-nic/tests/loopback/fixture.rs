//! Two devices and a connection between them.

use std::net::IpAddr;

pub(crate) use conformance::{
    FIRST, SECOND, Side, V6, bytes, connect, fill, pattern, soft as device,
    soft_with as device_with, soon, wait_until,
};
use gdr_rdma::{Access, ConnectionOptions, Endpoint, Mtu, SourcePort};

pub(crate) const EVERYTHING: Access = Access::all();

/// Returns perftest's values, with a path MTU for loopback.
pub(crate) fn options() -> ConnectionOptions {
    ConnectionOptions::new(Mtu::B4096)
}

/// Like [`connect`], but accepts packets of `card` from any source port, as network cards use many.
pub(crate) fn connect_to_card(card: &Side, to: &Side) {
    let any_port = Endpoint {
        source_port: SourcePort::Any,
        loss_recovery: gdr_rdma::LossRecovery::GoBackN,
        ..card.pair.endpoint()
    };
    card.pair.connect(&to.pair.endpoint(), &options()).unwrap();
    to.pair.connect(&any_port, &options()).unwrap();
}

/// Returns two connected sides at these addresses.
pub(crate) fn connected(a: IpAddr, b: IpAddr) -> Option<(Side, Side)> {
    let sides = (Side::soft(a)?, Side::soft(b)?);
    connect(&sides.0, &sides.1, &options());
    Some(sides)
}

/// Returns two connected sides at 127.0.0.1 and 127.0.0.2.
pub(crate) fn sides() -> Option<(Side, Side)> {
    connected(FIRST, SECOND)
}
