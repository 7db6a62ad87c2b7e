//! Programs that must not compile, as doctests. Each has a twin that differs only in the marked line and compiles, so
//! that a renamed function cannot change the meaning of the failure.
//!
//! # A flag does not outlive its mapping
//!
//! ```
//! use gdr_copy::{Flag, Mapping};
//! fn f(mapping: Mapping) {
//!     let flag: Flag<'_, u32> = mapping.flag(0).unwrap();
//!     flag.store(1);
//!     drop(mapping); // here
//! }
//! ```
//! ```compile_fail,E0505
//! use gdr_copy::{Flag, Mapping};
//! fn f(mapping: Mapping) {
//!     let flag: Flag<'_, u32> = mapping.flag(0).unwrap();
//!     drop(mapping); // here
//!     flag.store(1);
//! }
//! ```
//!
//! # A part of a mapping does not outlive it in another thread
//!
//! ```
//! use gdr_copy::Mapping;
//! fn f(mapping: &Mapping) {
//!     let part = mapping.slice(0, 64).unwrap();
//!     std::thread::scope(|scope| {
//!         scope.spawn(move || part.write_at(0, b"x")); // here
//!     });
//! }
//! ```
//! ```compile_fail,E0521
//! use gdr_copy::Mapping;
//! fn f(mapping: &Mapping) {
//!     let part = mapping.slice(0, 64).unwrap();
//!     std::thread::spawn(move || part.write_at(0, b"x")); // here
//! }
//! ```
//!
//! # The routine is not exchanged under a part that is in use
//!
//! ```
//! use gdr_copy::{Mapping, cpu::Routine};
//! fn f(mapping: &mut Mapping, routine: &'static Routine) {
//!     let part = mapping.slice(0, 64).unwrap();
//!     part.write_at(0, b"x").unwrap();
//!     mapping.set_routine(routine).unwrap(); // here
//! }
//! ```
//! ```compile_fail,E0502
//! use gdr_copy::{Mapping, cpu::Routine};
//! fn f(mapping: &mut Mapping, routine: &'static Routine) {
//!     let part = mapping.slice(0, 64).unwrap();
//!     mapping.set_routine(routine).unwrap(); // here
//!     part.write_at(0, b"x").unwrap();
//! }
//! ```
//!
//! # A flag is a word that one bus transaction carries
//!
//! ```
//! fn f(mapping: &gdr_copy::Mapping) {
//!     mapping.flag::<u64>(0).unwrap(); // here
//! }
//! ```
//! ```compile_fail,E0277
//! fn f(mapping: &gdr_copy::Mapping) {
//!     mapping.flag::<u128>(0).unwrap(); // here
//! }
//! ```
//!
//! # A mapping is not Rust memory
//!
//! ```
//! fn f(mapping: &gdr_copy::Mapping) {
//!     let bytes: *const u8 = mapping.as_ptr(); // here
//! }
//! ```
//! ```compile_fail,E0308
//! fn f(mapping: &gdr_copy::Mapping) {
//!     let bytes: &[u8] = mapping; // here
//! }
//! ```
