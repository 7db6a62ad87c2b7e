//! The kernel's netlink socket for RDMA (`NETLINK_RDMA`), with this library's devices in its answers: `rdma link`
//! and `rdma dev` ask there, and rdma-core's libraries ask for character devices.
//!
//! A program that opens such a socket gets one of `NETLINK_USERSOCK`, which every kernel has and which it binds,
//! configures, reads and closes as any other. Only what it sends is taken ([`socket`]): requests are read
//! ([`message`]) and answered ([`nldev`]) into the receive queue of the socket. Where the kernel has RDMA netlink,
//! it is asked as well: its devices come first, and requests about them are its own to answer.

#[cfg(test)]
mod interposed_tests;
mod message;
mod nldev;
mod socket;
