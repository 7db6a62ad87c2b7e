//! The network interface of a device, as the kernel reports it through rtnetlink(7).
//!
//! No thread waits for changes. A [`LinkWatch`] exposes a descriptor that becomes readable only when the interface
//! starts or stops carrying packets, or when the address appears or disappears. It must not become readable for
//! anything else: a program that polls a context's descriptor and finds it readable then takes an event, and that must
//! not block. So the socket's filter passes only the next change from the known state, and is replaced after each
//! change ([`link_filter`]).

mod link_filter;
mod link_state;
mod link_watch;
mod route_message;

pub use self::link_state::{LinkCondition, LinkState};
pub use self::link_watch::{LinkEvent, LinkWatch};
