//! How far a GPU and a NIC are apart, and why.
//!
//! ```text
//! cargo run -p gdr-node --example distance               the example node
//! cargo run -p gdr-node --example distance -- --live     this machine
//! ```

use std::error::Error;
use std::process::ExitCode;

use gdr_node::{Inventory, LiveRoot, Source, example};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let source: Box<dyn Source> = match std::env::args().nth(1).as_deref() {
        Some("--live") => Box::new(LiveRoot::new()),
        _ => Box::new(example::node()),
    };
    let node = Inventory::read(source.as_ref());
    let topology = node.topology()?;
    let gpu = node.gpus.first().ok_or("the node has no GPU")?;

    // The nearest NIC: classes are ordered from near to far.
    let mut nearest = None;
    for (nic, bdf) in node.rdma_functions() {
        let relation = topology.relation(gpu.bdf, bdf)?;
        println!("{} - {}: {}", gpu.index, nic.name, relation.smi);
        match &nearest {
            Some((_, best)) if *best <= relation.smi => {}
            _ => {
                println!("    {}", relation.why);
                nearest = Some((nic.name.as_str(), relation.smi));
            }
        }
    }
    let (nic, class) = nearest.ok_or("the node has no RDMA device on PCI")?;
    println!("nearest to {}: {nic} ({class})", gpu.index);
    Ok(())
}
