//! The numbers of NVIDIA's Xid messages that matter to GPUDirect RDMA.

use crate::finding::{Finding, Verdict};
use crate::fix::{Effect, Fix, Privilege, Risk};

/// The remedy for an Xid.
#[derive(Clone, Copy)]
enum Advice {
    /// Nothing.
    Ignore,
    /// Debug the program and restart it.
    Program,
    /// Reset the GPU.
    Reset,
    /// Power-cycle the machine.
    PowerCycle,
    /// Check the NVLinks.
    Links,
}

/// Number, verdict, event and remedy, sorted by number.
#[rustfmt::skip]
const CATALOGUE: [(u32, Verdict, &str, Advice); 44] = {
    use Advice::{Ignore, Links, PowerCycle, Program, Reset};
    use Verdict::{Fail, Info, Warn};
    [
        (8, Warn, "the GPU stopped processing", Program),
        (11, Warn, "commands to the GPU were corrupt", Program),
        (13, Warn, "a CUDA kernel of a program failed", Program),
        (31, Warn, "an access to GPU memory faulted", Program),
        (32, Warn, "commands to the GPU were corrupt", Program),
        (38, Warn, "the firmware of the driver failed", Reset),
        (43, Info, "a program's work on the GPU was stopped", Ignore),
        (44, Warn, "a context switch failed", Program),
        (45, Info, "a program's work was cleaned up after an error", Ignore),
        (46, Fail, "the GPU stopped processing", Reset),
        (48, Fail, "memory had a double-bit error", Reset),
        (54, Fail, "its auxiliary power is not connected", PowerCycle),
        (61, Fail, "a microcontroller of the GPU stopped", Reset),
        (62, Fail, "a microcontroller of the GPU halted", Reset),
        (63, Info, "bad memory was remapped; a reset completes it", Ignore),
        (64, Fail, "bad memory could not be remapped", Reset),
        (69, Warn, "a program's request to an engine was wrong", Program),
        (74, Warn, "an NVLink had an error", Links),
        (79, Fail, "the GPU has fallen off the bus", PowerCycle),
        (92, Info, "memory has many single-bit errors", Ignore),
        (94, Warn, "a memory error was contained to one program", Program),
        (95, Fail, "a memory error was not contained", Reset),
        (109, Fail, "a context switch timed out", Reset),
        (110, Fail, "the GPU has detected a security fault", Reset),
        (119, Fail, "the GPU's system processor (GSP) did not answer", Reset),
        (120, Fail, "the GPU's system processor (GSP) failed", Reset),
        (121, Info, "the link to the CPU (C2C) had an error", Ignore),
        (136, Fail, "training a link failed", Reset),
        (137, Warn, "an access over NVLink was not allowed", Program),
        (140, Fail, "memory had an uncorrected error", Reset),
        (143, Fail, "the GPU did not initialize", Reset),
        (144, Warn, "an NVLink had an error", Links),
        (145, Warn, "an NVLink had an error", Links),
        (146, Warn, "an NVLink had an error", Links),
        (147, Warn, "an NVLink had an error", Links),
        (148, Warn, "an NVLink had an error", Links),
        (149, Warn, "an NVLink had an error", Links),
        (150, Warn, "an NVLink had an error", Links),
        (154, Warn, "the driver requires a recovery action for the GPU", Reset),
        (155, Fail, "an NVLink had a software-defined error", Reset),
        (156, Warn, "a faulty part of the GPU was disabled", Reset),
        (158, Fail, "the GPU timed out", Reset),
        (171, Fail, "memory had an uncorrected error", Reset),
        (172, Fail, "memory had an uncorrected error", Reset),
    ]
};

/// Returns the event that an Xid number stands for, if it is known.
pub fn meaning_of_xid(number: u32) -> Option<&'static str> {
    let known = CATALOGUE.iter().find(|(of, ..)| *of == number);
    known.map(|(_, _, what, _)| *what)
}

/// Returns the finding for an Xid message about the GPU at an address.
pub(super) fn meaning(number: u32, address: &str) -> Finding {
    let known = CATALOGUE.iter().find(|(of, ..)| *of == number);
    let Some((_, verdict, what, advice)) = known else {
        return Finding::warn(format!("Xid {number}: an error of the GPU")).fix(Fix::manual(
            "Look it up",
            format!("see https://docs.nvidia.com/deploy/xid-errors/ for Xid {number}"),
        ));
    };
    let meaning = Finding::new(*verdict, format!("Xid {number}: {what}"));
    match advice {
        Advice::Ignore => meaning,
        Advice::Program => meaning.fix(Fix::user(
            "Debug the program",
            "compute-sanitizer COMMAND   # then restart the program",
        )),
        Advice::Reset => meaning.fix(
            Fix {
                privilege: Privilege::Root,
                effect: Effect::Now,
                ..Fix::run(
                    "Reset the GPU",
                    format!("nvidia-smi --gpu-reset -i {address}"),
                )
            }
            .risk(
                Risk::Medium,
                "programs on the GPU end; with NVSwitch all GPUs are reset \
                                 together",
            ),
        ),
        Advice::PowerCycle => power_cycled(meaning),
        Advice::Links => meaning.fix(Fix::user(
            "Find the link with errors",
            "nvidia-smi nvlink --status; nvidia-smi nvlink --errorcounters",
        )),
    }
}

/// Returns the finding about a GPU that does not answer, with what helps.
pub(super) fn power_cycled(found: Finding) -> Finding {
    found
        .fix(
            Fix::manual("Power-cycle the machine", "power the machine off and on")
                .risk(Risk::Medium, "everything on the machine stops"),
        )
        .fix(
            Fix::hardware(
                "Look at the card if it happens again",
                "reseat the GPU and its power cables, then have the GPU replaced",
            )
            .risk(Risk::Medium, "everything on the machine stops"),
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_and_an_unknown_one_has_a_link_to_the_list() {
        assert!(CATALOGUE.windows(2).all(|two| two[0].0 < two[1].0));
        assert_eq!(meaning(79, "").verdict, Verdict::Fail);
        assert_eq!(meaning(43, "").verdict, Verdict::Info);
        let other = meaning(9999, "");
        assert_eq!(other.verdict, Verdict::Warn);
        assert!(other.fixes[0].actions[0].to_string().contains("Xid 9999"));
    }
}
