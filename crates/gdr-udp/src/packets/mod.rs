//! Raw packets: whole Ethernet frames over a packet socket of the device's network interface.
//!
//! A device opens one packet socket, with its first raw packet queue pair. The socket needs CAP_NET_RAW and receives
//! nothing while there are no flows. Frames are dispatched to queue pairs here, by the [`steering::FlowTable`]; the
//! kernel knows only whether there are flows, and which addresses the interface must accept for them. Unlike a network
//! card, which hides a frame that it steers to a queue pair, the kernel's own stack processes the same frames, too.

pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod packet_socket;
pub(crate) mod spread;
pub(crate) mod steering;

pub(crate) use self::packet_socket::PacketSocket;
