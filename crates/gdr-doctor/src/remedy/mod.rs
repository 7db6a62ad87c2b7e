//! Mends what a diagnosis found: as a script to read first, or at once with a journal to undo it.
//!
//! [`Plan`] chooses among the fixes of a [`Diagnosis`](crate::Diagnosis); [`script()`] writes it as
//! a commented shell script with its undo lines; [`apply()`] carries it out through [`Hands`], writes
//! every change into a [`Journal`] before it is made, and reads every register again after;
//! [`undo()`] takes back what a journal says.
//!
//! What may be carried out is little, and [`Refusal`] says why the rest is left to people: ACS
//! redirect bits, the Maximum Read Request Size, loading modules now and at boot, drop-ins for
//! limits, the removal and rescan of a function that no driver holds, and MTUs. Never firmware.

mod apply;
mod hands;
mod journal;
mod permitted;
mod plan;
mod script;
mod shell;
mod undo;

pub use apply::{ApplyError, Done, apply};
pub use hands::{Hands, LiveHands};
pub use journal::{Change, Journal, JournalError, Record};
pub use permitted::Refusal;
pub use plan::{Plan, Step};
pub use script::script;
pub use undo::{Undone, undo};
