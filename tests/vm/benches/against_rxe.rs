//! The soft provider against the kernel's rxe, in one guest.
fn main() {}
