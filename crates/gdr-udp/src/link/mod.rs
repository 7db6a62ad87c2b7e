//! The network interface of a device, as the kernel reports it by netlink (rtnetlink(7)).
//!
//! No thread waits for its changes. A [`LinkWatch`] has a descriptor that becomes readable when the
//! interface begins or ends to carry packets, or the address goes or comes, and for nothing else: a program
//! that waits for the descriptor of a context and finds it readable then takes an event, and that must
//! not block. So the socket has a filter that passes the next change of the state that is known, and is
//! replaced after each change ([`link_filter`]).

mod link_filter;
mod link_state;
mod link_watch;
mod route_message;

pub use self::link_state::{LinkCondition, LinkState};
pub use self::link_watch::{LinkEvent, LinkWatch};
