//! The goodput of one flow over lossy, reordering, long and congested links and between hosts that delay packets, and
//! the fairness of two flows at a bottleneck, in virtual time.
//!
//! ```text
//! cargo run --release -p gdr-roce --example goodput
//! ```
//!
//! The figures depend only on the code: they are the same on every machine and in every run.

#[path = "../../tests/protocol/paths/case.rs"]
mod case;
#[path = "../../tests/protocol/fixture/mod.rs"]
mod fixture;
#[path = "../../tests/protocol/paths/flow.rs"]
mod flow;
#[path = "../../tests/protocol/paths/link.rs"]
mod link;

use case::{BOTTLENECKS, CASES, FAULTS, HOSTS, OFFSETS};
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

    println!("\nbetween hosts that delay packets, selective: part of the rate without a fault");
    print!("{:<28}", "");
    for (fault, _) in FAULTS {
        print!(" {fault:>16}");
    }
    println!();
    for host in HOSTS {
        for operation in [Direct::Write, Direct::Read] {
            print!("{:<28}", format!("{} hosts, {operation:?}", host.name));
            for kept in host.kept(operation, FAULTS) {
                print!(" {:>15.1}%", 100.0 * kept);
            }
            println!();
        }
    }

    println!("\ntwo flows at 1 Gbit/s, the greatest difference of their rates, part of the mean");
    for bottleneck in BOTTLENECKS {
        let averaged = bottleneck.averaged.as_secs();
        print!(
            "{:<28}",
            format!("queue {}, over {averaged} s", bottleneck.queue)
        );
        for recovery in [GoBackN, Selective] {
            for operation in [Direct::Write, Direct::Read] {
                let apart = OFFSETS.into_iter().zip(1..).map(|(offset, seed)| {
                    let (apart, _) = bottleneck.share(operation, recovery, offset, seed);
                    apart
                });
                print!(" {:>9.1}%", 100.0 * apart.fold(0.0, f64::max));
            }
        }
        println!();
    }
}
