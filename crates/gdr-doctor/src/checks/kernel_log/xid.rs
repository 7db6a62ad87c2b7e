//! The numbers of NVIDIA's Xid messages that matter to GPUDirect RDMA.

use crate::finding::{Finding, Verdict};
use crate::fix::{Effect, Fix, Privilege, Risk};

/// What to do about one.
#[derive(Clone, Copy)]
enum Advice {
    /// Nothing.
    Ignore,
    /// Look at the program, start it again.
    Program,
    /// Reset the GPU.
    Reset,
    /// Power-cycle the machine.
    PowerCycle,
    /// Look at NVLink.
    Links,
}

/// Number, verdict, what happened, what to do; in the order of numbers.
#[rustfmt::skip]
const CATALOGUE: [(u32, Verdict, &str, Advice); 44] = {
    use Advice::{Ignore, Links, PowerCycle, Program, Reset};
    use Verdict::{Fail, Info, Warn};
    [
        (8, Warn, "the GPU stopped processing", Program),
        (11, Warn, "commands to the GPU were corrupt", Program),
        (13, Warn, "a kernel of a program failed", Program),
        (31, Warn, "an access to GPU memory found no page", Program),
        (32, Warn, "commands to the GPU were corrupt", Program),
        (38, Warn, "the firmware of the driver failed", Reset),
        (43, Info, "a program's work on the GPU was stopped", Ignore),
        (44, Warn, "a program's switch on the GPU failed", Program),
        (45, Info, "a program's work was cleaned up after an error", Ignore),
        (46, Fail, "the GPU stopped processing", Reset),
        (48, Fail, "memory had an error of two bits", Reset),
        (54, Fail, "its auxiliary power is not connected", PowerCycle),
        (61, Fail, "a microcontroller of the GPU stopped", Reset),
        (62, Fail, "a microcontroller of the GPU halted", Reset),
        (63, Info, "bad memory was remapped; a reset completes it", Ignore),
        (64, Fail, "bad memory could not be remapped", Reset),
        (69, Warn, "a program's request to an engine was wrong", Program),
        (74, Warn, "an NVLink had an error", Links),
        (79, Fail, "the GPU has fallen off the bus", PowerCycle),
        (92, Info, "memory has many errors of one bit", Ignore),
        (94, Warn, "an error of memory was contained to its program", Program),
        (95, Fail, "an error of memory was not contained", Reset),
        (109, Fail, "the GPU did not change between programs in time", Reset),
        (110, Fail, "the GPU has seen a fault of its security", Reset),
        (119, Fail, "the GPU's system processor (GSP) did not answer", Reset),
        (120, Fail, "the GPU's system processor (GSP) failed", Reset),
        (121, Info, "the link to the CPU (C2C) had an error", Ignore),
        (136, Fail, "training a link failed", Reset),
        (137, Warn, "an access over NVLink was not allowed", Program),
        (140, Fail, "memory had an error that was not repaired", Reset),
        (143, Fail, "the GPU did not start", Reset),
        (144, Warn, "an NVLink had an error", Links),
        (145, Warn, "an NVLink had an error", Links),
        (146, Warn, "an NVLink had an error", Links),
        (147, Warn, "an NVLink had an error", Links),
        (148, Warn, "an NVLink had an error", Links),
        (149, Warn, "an NVLink had an error", Links),
        (150, Warn, "an NVLink had an error", Links),
        (154, Warn, "the driver asks for the GPU's recovery", Reset),
        (155, Fail, "an NVLink had an error that software defines", Reset),
        (156, Warn, "a bad part of the GPU was retired", Reset),
        (158, Fail, "the GPU did not answer in time", Reset),
        (171, Fail, "memory had an error that was not repaired", Reset),
        (172, Fail, "memory had an error that was not repaired", Reset),
    ]
};

/// What an Xid of this number stands for, where that is known.
pub(crate) fn meaning_of(number: u32) -> Option<&'static str> {
    let known = CATALOGUE.iter().find(|(of, ..)| *of == number);
    known.map(|(_, _, what, _)| *what)
}

/// What an Xid message of this number about the GPU at this address means.
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
            "Look for the fault in the program",
            "compute-sanitizer COMMAND   # then start the program again",
        )),
        Advice::Reset => meaning.fix(
            Fix {
                privilege: Privilege::Root,
                effect: Effect::Now,
                ..Fix::run("Reset the GPU", format!("nvidia-smi --gpu-reset -i {address}"))
            }
            .risk(Risk::Medium, "programs on the GPU end; on NVSwitch all GPUs are reset together"),
        ),
        Advice::PowerCycle => meaning.fix(
            Fix::manual(
                "Power the machine off and on",
                "if it happens again, seat the GPU and its power cables again, then have it replaced",
            )
            .risk(Risk::Medium, "everything on the machine stops"),
        ),
        Advice::Links => meaning.fix(Fix::user(
            "Look which link has errors",
            "nvidia-smi nvlink --status; nvidia-smi nvlink --errorcounters",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_the_unknown_is_looked_up() {
        assert!(CATALOGUE.windows(2).all(|two| two[0].0 < two[1].0));
        assert_eq!(meaning(79, "").verdict, Verdict::Fail);
        assert_eq!(meaning(43, "").verdict, Verdict::Info);
        let other = meaning(9999, "");
        assert_eq!(other.verdict, Verdict::Warn);
        assert!(other.fixes[0].actions[0].to_string().contains("Xid 9999"));
    }
}
