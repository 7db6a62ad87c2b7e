//! One check of the doctor over an archive of a node.
//!
//! ```text
//! cargo run -p gdr-doctor --example check_archive                        the example node
//! cargo run -p gdr-doctor --example check_archive -- FILE [CHECK]        `gdr collect` made FILE
//! ```

use std::env;
use std::error::Error;
use std::process::ExitCode;

use gdr_doctor::{Context, Selection, diagnose, find};
use gdr_node::archive::{Archive, Origin};
use gdr_node::{Inventory, collect, example};

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
    let mut arguments = env::args().skip(1);
    let archive = match arguments.next() {
        Some(path) => Archive::open(path)?,
        None => {
            // As `gdr collect --example` writes it.
            let mut file = Vec::new();
            collect::collect(&example::node(), Origin::default(), |_| {}).write(&mut file)?;
            Archive::read(file.as_slice())?
        }
    };
    let id = arguments.next().unwrap_or_else(|| "acs.path".to_owned());
    let check = find(&id).ok_or("there is no such check")?;
    println!("{}: {}", check.id, check.title);

    let inventory = Inventory::read(&archive);
    let selection = Selection::all().only([check.id]);
    let diagnosis = diagnose(&Context::new(&archive, &inventory), &selection);
    for entry in &diagnosis.findings {
        let finding = &entry.finding;
        println!(
            "{} {}: {}",
            finding.verdict, finding.subject, finding.summary
        );
        for fix in &finding.fixes {
            println!("    fix: {}", fix.title);
        }
    }
    println!("outcome: {:?}", diagnosis.outcome());
    Ok(())
}
