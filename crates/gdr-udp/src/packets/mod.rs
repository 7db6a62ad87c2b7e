//! Raw packets: whole Ethernet frames over a packet socket of the device's network interface.
//!
//! A device has one packet socket, from its first raw packet queue pair on. It needs CAP_NET_RAW,
//! and receives nothing while there is no flow. Which queue pairs receive a frame is decided here,
//! by the [`steering::FlowTable`]: the kernel sees only that there are flows, and which addresses
//! the interface must receive for them. The kernel processes the same frames, too; a network card
//! that steers a frame to a queue pair keeps it from the kernel.

pub(crate) mod flow;
pub(crate) mod frame;
pub(crate) mod packet_socket;
pub(crate) mod spread;
pub(crate) mod steering;

pub(crate) use self::packet_socket::PacketSocket;
