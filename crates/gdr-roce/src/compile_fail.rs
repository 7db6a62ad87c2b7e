//! Code that must not compile, as doctests. Each has a twin that differs in the marked line and compiles, so that a
//! renamed function cannot make the failure mean something else.
//!
//! # A packet does not outlive its bytes
//!
//! ```
//! use gdr_roce::wire::Packet;
//! fn f(mut bytes: Vec<u8>) {
//!     let packet = Packet::new(&bytes).unwrap();
//!     packet.bth();
//!     bytes.clear(); // here
//! }
//! ```
//! ```compile_fail,E0502
//! use gdr_roce::wire::Packet;
//! fn f(mut bytes: Vec<u8>) {
//!     let packet = Packet::new(&bytes).unwrap();
//!     bytes.clear(); // here
//!     packet.bth();
//! }
//! ```
//!
//! # Sequence numbers have no order, because they wrap
//!
//! ```
//! fn f(a: gdr_roce::Psn, b: gdr_roce::Psn) -> bool {
//!     a.compare(b).is_lt() // here
//! }
//! ```
//! ```compile_fail,E0369
//! fn f(a: gdr_roce::Psn, b: gdr_roce::Psn) -> bool {
//!     a < b // here
//! }
//! ```
