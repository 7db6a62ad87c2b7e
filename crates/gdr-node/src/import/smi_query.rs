//! The output of `nvidia-smi` and of `nvidia-smi -q`.

use gdr_pci::Bdf;

use crate::inventory::Inventory;
use crate::numa::NumaLayout;
use crate::pci::{Class, Function, Identity, Tree, VendorId};
use crate::probe::{GpuFacts, GpuProcess, Probe};

/// The most GPUs to read.
const MOST_GPUS: usize = 256;
/// The most processes to read per GPU.
const MOST_PROCESSES: usize = 1024;

/// Parses the answer in a text; `None` if it contains no GPU as printed by nvidia-smi.
pub(super) fn read(text: &str) -> Option<Probe<GpuFacts>> {
    let has_table = || text.contains("| NVIDIA-SMI ") && text.contains("Bus-Id");
    let answer = if text.contains("NVSMI LOG=") {
        query(text)
    } else if has_table() {
        table(text)
    } else {
        return None;
    };
    (!answer.devices.is_empty()).then_some(answer)
}

/// Returns the GPUs of an answer, which lists all that the driver manages on the node.
pub(super) fn inventory(answer: &Probe<GpuFacts>) -> Inventory {
    let functions = answer.devices.iter().filter_map(|gpu| {
        let mut function = Function::new(gpu.pci.parse().ok()?);
        function.identity = Identity {
            class: Some(Class(0x03_0200)),
            vendor: Some(VendorId::NVIDIA),
            name: gpu.name.clone(),
            ..Identity::default()
        };
        function.driver = Ok("nvidia".to_owned());
        Some(function)
    });
    let mut tree = Tree::from_bus_numbers(functions);
    tree.sever(tree.roots());
    Inventory::of_tree(Ok(tree), NumaLayout::unknown())
}

/// Converts a compute mode to CUDA's number.
fn compute_mode(text: &str) -> Option<u32> {
    match text {
        "Default" => Some(0),
        "Exclusive_Thread" | "E. Thread" => Some(1),
        "Prohibited" => Some(2),
        "Exclusive_Process" | "E. Process" => Some(3),
        _ => None,
    }
}

/// Parses `Enabled`, `On` and their opposites; `None` for any other word.
fn switch(text: &str) -> Option<bool> {
    match text {
        "Enabled" | "On" => Some(true),
        "Disabled" | "Off" => Some(false),
        _ => None,
    }
}

/// Parses a version: `580.95.05`, `13.0`.
fn version(text: &str) -> Option<String> {
    let version = text.split_whitespace().next()?;
    let is_version = version.contains('.')
        && (version.split('.')).all(|part| {
            !part.is_empty() && part.len() < 6 && part.bytes().all(|b| b.is_ascii_digit())
        });
    is_version.then(|| version.to_owned())
}

/// Parses the long form, `nvidia-smi -q`.
fn query(text: &str) -> Probe<GpuFacts> {
    let mut answer = Probe::of(Vec::new());
    let mut group = "";
    for line in super::plain::lines(text) {
        let inside = line.trim();
        if let Some(at) = (inside.strip_prefix("GPU ")).and_then(|at| at.parse::<Bdf>().ok()) {
            if answer.devices.len() < MOST_GPUS {
                answer.devices.push(GpuFacts {
                    pci: at.to_string(),
                    ..GpuFacts::default()
                });
            }
            group = "";
            continue;
        }
        let Some((label, value)) = inside.split_once(" : ") else {
            // A group heading has no value.
            if !inside.is_empty() {
                group = inside;
            }
            continue;
        };
        let (label, value) = (label.trim(), value.trim());
        let Some(device) = answer.devices.last_mut() else {
            match label {
                "Driver Version" => answer.kernel_driver = version(value),
                "CUDA Version" => answer.driver_version = version(value),
                _ => {}
            }
            continue;
        };
        match (group, label) {
            (_, "Product Name") => device.name = Some(value.to_owned()),
            (_, "GPU UUID") => device.uuid = Some(value.to_owned()),
            (_, "Persistence Mode") => device.persistence = switch(value),
            (_, "Compute Mode") => device.compute_mode = compute_mode(value),
            ("ECC Mode" | "Ecc Mode", "Current") => device.ecc_enabled = switch(value),
            ("MIG Mode", "Current") => device.mig = switch(value),
            (_, "Processes") if value == "None" => device.processes = Some(Vec::new()),
            (_, "Process ID") => {
                if let Ok(pid) = value.parse() {
                    add_process(
                        device,
                        GpuProcess {
                            pid,
                            ..GpuProcess::default()
                        },
                    );
                }
            }
            ("Processes", "Name") => {
                if let Some(process) = device.processes.as_mut().and_then(|all| all.last_mut()) {
                    process.name = program(value);
                }
            }
            ("Processes", "Used GPU Memory") => {
                if let Some(process) = device.processes.as_mut().and_then(|all| all.last_mut()) {
                    process.memory = mebibytes(value);
                }
            }
            _ => {}
        }
    }
    answer
}

/// Parses the table that `nvidia-smi` prints without options, where long names are truncated.
fn table(text: &str) -> Probe<GpuFacts> {
    let mut answer = Probe::of(Vec::new());
    // Rows seen after a GPU's first one.
    let mut rows = 0;
    let mut numbers: Vec<u32> = Vec::new();
    let mut are_processes = false;
    for line in super::plain::lines(text) {
        let line = line.trim();
        if are_processes {
            if line.contains("No running processes found") {
                // A container also sees no processes.
                are_processes = false;
            } else if let Some((number, process)) = process_row(line)
                && let Some(at) = numbers.iter().position(|known| *known == number)
            {
                add_process(&mut answer.devices[at], process);
            }
            continue;
        }
        if line.starts_with("| Processes:") {
            are_processes = true;
            continue;
        }
        if let Some((_, rest)) = line.split_once("Driver Version: ") {
            answer.kernel_driver = version(rest);
            answer.driver_version =
                (rest.split_once("CUDA Version: ")).and_then(|(_, rest)| version(rest));
            continue;
        }
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [first, second, third] = cells[..] else {
            continue;
        };
        if let Some((number, gpu)) = first_row(first, second, third) {
            if answer.devices.len() < MOST_GPUS {
                answer.devices.push(gpu);
                numbers.push(number);
            }
            rows = 2;
        } else if let Some(device) = answer.devices.last_mut().filter(|_| rows > 0) {
            match rows {
                // `0%      Default`
                2 => {
                    let mode = third.split_once('%').map_or(third, |(_, mode)| mode);
                    let mode = mode.trim_start_matches("N/A").trim();
                    device.compute_mode = compute_mode(mode);
                }
                _ => device.mig = switch(third.trim_end_matches('*')),
            }
            rows -= 1;
        }
    }
    answer
}

/// Parses `|    0   N/A  N/A      4242      C   /opt/train/python      500MiB |`: a GPU index and a process. Older
/// forms lack the columns of instances.
fn process_row(line: &str) -> Option<(u32, GpuProcess)> {
    let words: Vec<&str> = line.trim_matches('|').split_whitespace().collect();
    let (memory, words) = words.split_last()?;
    let kind = (words.iter()).position(|word| matches!(*word, "C" | "G" | "C+G" | "M" | "M+C"))?;
    let process = GpuProcess {
        pid: words.get(kind.checked_sub(1)?)?.parse().ok()?,
        name: program(&words[kind + 1..].join(" ")),
        memory: mebibytes(memory),
    };
    Some((words[0].parse().ok()?, process))
}

fn add_process(device: &mut GpuFacts, process: GpuProcess) {
    let all = device.processes.get_or_insert_default();
    if all.len() < MOST_PROCESSES {
        all.push(process);
    }
}

/// Returns the program name in a path. Long paths are truncated on the left: `...envs/run/bin/python`.
fn program(path: &str) -> Option<String> {
    let name = path.rsplit('/').next().unwrap_or(path).trim();
    (!name.is_empty() && name != "N/A").then(|| name.to_owned())
}

/// Parses `500MiB` or `500 MiB`.
fn mebibytes(text: &str) -> Option<u64> {
    let number: u64 = text.strip_suffix("MiB")?.trim().parse().ok()?;
    number.checked_mul(1 << 20)
}

/// Parses `0  NVIDIA H100 80GB HBM3  On`, `00000000:1B:00.0 Off`, `0`: a GPU's index and facts.
fn first_row(first: &str, second: &str, third: &str) -> Option<(u32, GpuFacts)> {
    let at: Bdf = second.split_whitespace().next()?.parse().ok()?;
    let (number, rest) = first.split_once(' ')?;
    let number = number.parse().ok()?;
    let (name, persistence) = rest.trim().rsplit_once(' ')?;
    let facts = GpuFacts {
        pci: at.to_string(),
        name: Some(name.trim().to_owned()),
        persistence: switch(persistence),
        // The number of errors since the driver was loaded, if errors are counted.
        ecc_enabled: switch(third).or_else(|| third.parse::<u64>().ok().map(|_| true)),
        ..GpuFacts::default()
    };
    Some((number, facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, name: &str, mebibytes: Option<u64>) -> GpuProcess {
        GpuProcess {
            pid,
            name: Some(name.to_owned()),
            memory: mebibytes.map(|number| number << 20),
        }
    }

    #[test]
    fn processes_are_those_of_their_gpu_in_every_form() {
        for (row, expected) in [
            (
                "|    0   N/A  N/A            4242      C   python                     500MiB  |",
                (0, process(4242, "python", Some(500))),
            ),
            (
                "|    3      1234    C+G   ...s/my app/run me     N/A |",
                (3, process(1234, "run me", None)),
            ),
        ] {
            assert_eq!(process_row(row), Some(expected), "{row}");
        }
        for none in [
            "|  GPU   GI   CI        PID   Type   Process name |",
            "|===|",
            "",
        ] {
            assert_eq!(process_row(none), None, "{none}");
        }
    }

    #[test]
    fn the_long_form_has_driver_names_and_modes() {
        let text = "==============NVSMI LOG==============\n\n\
            Driver Version                            : 580.95.05\n\
            CUDA Version                              : 13.0\nAttached GPUs : 2\n\
            GPU 00000000:01:00.0\n    Product Name          : NVIDIA H100 80GB HBM3\n\
            \x20   Persistence Mode                      : Enabled\n\
            \x20   Compute Mode                          : Prohibited\n\
            \x20   ECC Mode\n        Current                           : Disabled\n\
            \x20       Pending                           : Enabled\n\
            \x20   Processes\n        Process ID                        : 4242\n\
            \x20           Type                          : C\n\
            \x20           Name                          : /opt/envs/bin/python\n\
            \x20           Used GPU Memory               : 500 MiB\n\
            GPU 00000000:02:00.0\n    MIG Mode\n        Current                           : Enabled\n\
            \x20   Processes                             : None\n";
        let answer = read(text).unwrap();
        assert_eq!(answer.kernel_driver.as_deref(), Some("580.95.05"));
        assert_eq!(answer.driver_version.as_deref(), Some("13.0"));
        let [first, second] = &answer.devices[..] else {
            panic!("{answer:?}");
        };
        assert_eq!(first.pci, "0000:01:00.0");
        assert_eq!(first.name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
        assert_eq!((first.persistence, first.mig), (Some(true), None));
        assert_eq!(
            (first.compute_mode, first.ecc_enabled),
            (Some(2), Some(false))
        );
        assert_eq!((second.mig, second.ecc_enabled), (Some(true), None));
        assert_eq!(
            first.processes,
            Some(vec![process(4242, "python", Some(500))])
        );
        assert_eq!(second.processes, Some(Vec::new()));
        assert!(read("words").is_none());
    }

    #[test]
    fn the_table_has_the_same_facts() {
        let text = "\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 570.86.15              Driver Version: 570.86.15      CUDA Version: 12.8     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:1B:00.0 Off |                    0 |
| N/A   31C    P0             71W /  700W |       1MiB /  81559MiB |      0%   E. Process |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA GeForce RTX 4090        Off |   00000000:43:00.0 Off |                  Off |
|  0%   31C    P8             20W /  450W |       1MiB /  24564MiB |      0%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
| Processes:                                                                              |
|    0   N/A  N/A            4242      C   python                                 500MiB  |
+-----------------------------------------------------------------------------------------+
";
        let answer = read(text).unwrap();
        assert_eq!(answer.kernel_driver.as_deref(), Some("570.86.15"));
        assert_eq!(answer.driver_version.as_deref(), Some("12.8"));
        let [first, second] = &answer.devices[..] else {
            panic!("{answer:?}");
        };
        assert_eq!((first.persistence, first.mig), (Some(true), Some(false)));
        assert_eq!(
            (first.compute_mode, first.ecc_enabled),
            (Some(3), Some(true))
        );
        assert_eq!(
            first.processes,
            Some(vec![process(4242, "python", Some(500))])
        );
        assert_eq!(second.processes, None);
        assert_eq!(second.name.as_deref(), Some("NVIDIA GeForce RTX 4090"));
        assert_eq!((second.persistence, second.mig), (Some(false), None));
        assert_eq!(
            (second.compute_mode, second.ecc_enabled),
            (Some(0), Some(false))
        );
        let inventory = inventory(&answer);
        assert_eq!(inventory.gpus.len(), 2);
        assert!(
            inventory
                .topology()
                .unwrap()
                .relation(inventory.gpus[0].bdf, inventory.gpus[1].bdf,)
                .is_err()
        );
    }
}
