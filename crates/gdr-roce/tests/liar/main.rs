//! A peer that breaks every rule: no byte is placed, nothing panics, and it is told why.

mod answers;
#[path = "../fixture/mod.rs"]
mod fixture;
mod requests;
mod storm;
mod victim;
