//! The goodput of one flow over lossy, reordering, long and congested links, in virtual time.
//!
//! ```text
//! cargo run --release -p gdr-roce --example goodput
//! ```
//!
//! The figures depend on the code alone: they are the same on every machine and in every run.

#[path = "../../tests/paths/case.rs"]
mod case;
#[path = "../../tests/fixture/mod.rs"]
mod fixture;
#[path = "../../tests/paths/flow.rs"]
mod flow;
#[path = "../../tests/paths/link.rs"]
mod link;

use case::CASES;
use flow::Direct;
use gdr_roce::LossRecovery::{GoBackN, Selective};

fn main() {
    println!("payload, part of the link; go-back-N as with any peer, selective between two of gdr");
    println!(
        "{:<28} {:>10} {:>10} {:>10} {:>10}",
        "", "WRITE", "READ", "WRITE sel.", "READ sel."
    );
    for case in CASES {
        print!("{:<28}", case.name);
        for recovery in [GoBackN, Selective] {
            for operation in [Direct::Write, Direct::Read] {
                let part = case.utilization(operation, recovery);
                print!(" {:>9.1}%", 100.0 * part);
            }
        }
        println!();
    }
}
