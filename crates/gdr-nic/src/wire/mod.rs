//! The wire: what carries packets between devices.

pub(crate) mod udp;
