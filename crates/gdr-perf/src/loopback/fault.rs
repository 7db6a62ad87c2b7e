//! Faults of a rehearsal: what a run says where bytes do not arrive as they should.

use serde::Serialize;

/// What becomes of the bytes behind the completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// None of them arrives.
    Lost,
    /// The second half does not arrive.
    Part,
    /// A word in the middle is another one.
    Damaged,
    /// A kernel sees them, and the comparisons after it see what was there before.
    Stale,
}
