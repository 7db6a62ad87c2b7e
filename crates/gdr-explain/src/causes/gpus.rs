//! Messages of GPUs, NVSwitches and their driver.

use super::{follows, hand, likely, run, sure, weak};
use crate::{Cause, Kind, Strength};
use gdr_doctor::kernel_log::{expressions, meaning_of_xid};

const CATALOGUE: &str = "https://docs.nvidia.com/deploy/xid-errors/";

/// How the driver's requests fail once a GPU has fallen off the bus.
pub(super) const GPU_GONE: &str = r"\brpcsendmessage failed with status 0x0{0,7}f\b";

pub(super) const CAUSES: &[Cause] = &[
    Cause {
        id: "gpu-memory-error",
        title: "A GPU's memory had an error",
        why: "Double-bit errors and rows that cannot be remapped end the work that was running on \
              the GPU, and data that was transferred cannot be trusted. A reset completes a \
              successful remapping (Xid 63).",
        patterns: &[
            sure(xid!("48|63|64|92|94|95|140|171|172")),
            likely(r"nvrm: .*\brow remap\w*\b.{0,40}(pending|fail)"),
            likely(
                r"\b(double bit|uncorrectable) ecc error|cudaerroreccuncorrectable|cuda_error_ecc_uncorrectable",
            ),
        ],
        detail: Some(xid_of),
        remedies: &[
            run(
                "Look at the error counts, then reset the GPU",
                "nvidia-smi -q -d ECC,ROW_REMAPPER; nvidia-smi --gpu-reset -i <GPU>",
            ),
            hand("If the errors return, have the GPU replaced"),
        ],
        checks: &["klog.xid", "gpu.ecc"],
        sources: &[CATALOGUE],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-firmware",
        title: "A GPU's internal processors have stopped, and it needs a reset",
        why: "The GPU's system processor (GSP) or microcontrollers no longer answer the driver's \
              requests. Programs and nvidia-smi hang.",
        patterns: &[
            sure(xid!("38|46|61|62|109|110|119|120|136|143|154|156|158")),
            sure(expressions::GPU_RESET),
            sure(r"\bgpu (requires|needs) (a )?reset\b"),
            likely(r"\btimeout after \d+s of waiting for rpc response from gpu"),
            likely(r"nvrm: .*assertion failed: .*\bkernel_gsp\w*\.c\b"),
            // The processors of a GPU, by the names of their functions in the driver.
            likely(
                r"nvrm: .*_?(kgsp|gsp|pmu|gfw|fsp|sec2|minion|kflcn|falcon|riscv|libos)\w*\b.*\b(fail\w*|halted|time[ds]? ?out|crash\w*|not respond\w*|stuck)\b",
            )
            .unless(GPU_GONE),
            likely(r"nvrm: .*(\bgsp timeout\b|\brpcsendmessage failed with status)")
                .unless(GPU_GONE),
            likely(
                r"\brmdriverinitialize.{0,40}fail|\bgsp[- ](firmware|rm)\b.{0,60}(fail|timed? ?out|heartbeat)",
            ),
        ],
        detail: Some(xid_of),
        remedies: &[
            run("Reset the GPU", "nvidia-smi --gpu-reset -i <GPU>"),
            hand(
                "Update the driver and the firmware; if it happens again, have the GPU replaced",
            ),
        ],
        checks: &["klog.xid", "klog.gpu_start", "gpu.present"],
        sources: &[CATALOGUE],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nvlink-error",
        title: "An NVLink had an error",
        why: "Links retrain or stop. On machines with NVSwitches, all GPUs of the fabric can be \
              affected.",
        patterns: &[
            sure(xid!("74|137|14[4-9]|150|155")),
            likely(r"\bnvlink\b.{0,40}\b(fatal|crc|replay|recovery) error"),
            weak(r"\b(nvlinks?|nvl)\b[^.;]{0,60}\b(fail\w*|errors?|down|inactive|lost|degraded)\b"),
            likely(r"\bnvlink link \d+ is (currently )?(down|inactive)\b"),
            likely(r"unable to retrieve nvlink information as all links are inactive"),
            // nvidia-smi nvlink: some links carry data, and some do not, as on cards with bridges.
            follows(
                r"\blink \d+: \d[\d.]* gb/s",
                r"\blink \d+: <inactive>",
                Strength::Weak,
            ),
            sure(
                r"\bcuda_error_contained\b|\bcudaerrorcontained\b|invalid access of peer gpu memory over nvlink",
            ),
            sure(
                r"uncorrectable nvlink error|\bcuda_error_nvlink_uncorrectable\b|\bcudaerrornvlinkuncorrectable\b",
            ),
        ],
        detail: Some(xid_of),
        remedies: &[
            run(
                "See which link it is",
                "nvidia-smi nvlink --status; nvidia-smi nvlink --errorcounters",
            ),
            hand("Reset the GPUs; if the error returns, have the board replaced"),
        ],
        checks: &["klog.xid", "klog.sxid", "fabricmanager"],
        sources: &[CATALOGUE],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nvswitch-error",
        title: "An NVSwitch had an error (SXid)",
        why: "Fatal errors end every program that uses NVLink until the GPUs and switches are \
              reset.",
        patterns: &[
            sure(r"\bnvswitch (non-)?fatal error \d+"),
            sure(expressions::SXID),
            sure(r"\bsxid \(pci:"),
        ],
        remedies: &[
            run(
                "Reset the GPUs and the switches",
                "nvidia-smi --gpu-reset && systemctl restart nvidia-fabricmanager",
            ),
            run("Look at the links' error counters", "nvidia-smi nvlink --errorcounters"),
        ],
        checks: &["klog.sxid", "fabricmanager"],
        sources: &["NVIDIA Fabric Manager user guide: NVSwitch SXids"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-program-fault",
        title: "A program's work on the GPU failed, usually because of a bug in the program",
        why: "A kernel accessed memory that it may not access, or was stopped. Other ranks then \
              wait for this one, and NCCL reports time-outs.",
        patterns: &[
            sure(xid!("8|11|13|31|32|43|44|68|69")),
            likely(
                r"an illegal memory access was encountered|cudaerrorillegaladdress|cuda_error_illegal_address",
            ),
        ],
        detail: Some(xid_of),
        remedies: &[
            run(
                "Look for the fault in the program",
                "compute-sanitizer <program>",
            ),
            hand("If different programs fail on the same GPU, reset it, then test its memory"),
        ],
        checks: &["klog.xid"],
        sources: &[CATALOGUE],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-channel-cleanup",
        kind: Kind::Consequence,
        title: "The driver cleaned up a program's work on the GPU after another error (Xid 45)",
        why: "Xid 45 follows an earlier error, a killed program or a reset, and is not an error \
              by itself. Newer drivers name the error that caused it.",
        patterns: &[sure(xid!("45")).unless(r"caused by previous xid \d")],
        detail: Some(xid_of),
        remedies: &[hand(
            "Look at the Xid before it, from this GPU or from another GPU in the same fabric",
        )],
        checks: &["klog.xid"],
        sources: &[CATALOGUE, "NVIDIA/open-gpu-kernel-modules issue 1150"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-probe",
        title: "NVIDIA's driver could not start a GPU",
        why: "The driver found the GPU on the bus but gave up on it. The lines before this one \
              give the reason: the GPU does not answer, the firmware assigned no addresses to its \
              BARs, or this flavour of the driver does not support the GPU.",
        patterns: &[
            likely(expressions::GPU_PROBE),
            likely(expressions::GPU_INIT),
            sure(r"installed in this system is not supported by"),
        ],
        remedies: &[
            run(
                "Read the driver's messages before this one",
                "dmesg | grep -i -A 5 nvrm",
            ),
            run(
                "Check that the GPU is on the bus and that its BARs have addresses",
                "lspci -vvv -d 10de:",
            ),
            hand("Turn the machine off and on; if the error remains, move or replace the card"),
        ],
        checks: &[
            "gpu.present",
            "gpu.driver",
            "klog.bar_unassigned",
            "klog.gpu_start",
        ],
        sources: &["open-gpu-kernel-modules kernel-open/nvidia/nv.c, nv-pci.c"],
        ..Cause::DEFAULT
    },
    Cause {
        id: "gpu-xid",
        title: "A GPU has reported an error (Xid)",
        why: "NVIDIA's catalogue says what the number means and what to do.",
        patterns: &[
            likely(expressions::XID),
            likely(r"\bxid \(pci:[0-9a-f:.]+\): \d+"),
        ],
        detail: Some(xid_of),
        remedies: &[run("Look the number up", CATALOGUE)],
        checks: &["klog.xid"],
        sources: &[CATALOGUE],
        ..Cause::DEFAULT
    },
    Cause {
        id: "nccl-crash",
        title: "A program has crashed in NCCL",
        why: "A crash in libnccl.so is caused by NCCL, by a plug-in, or by the program: it mixes \
              versions in one process, for example, or uses a communicator after destroying it. \
              The crash does not point to a fault of the node.",
        patterns: &[
            sure(expressions::NCCL_SEGFAULT),
            likely(r"segmentation fault.{0,120}\blibnccl"),
            follows(
                r"caught signal \d+|process received signal",
                r"/libnccl\S*\.so\S*\(",
                Strength::Likely,
            ),
        ],
        remedies: &[
            hand("Remove network plug-ins, and use one version of NCCL in the whole job"),
            run("See which version is loaded", "NCCL_DEBUG=VERSION"),
        ],
        checks: &["klog.nccl_segfault"],
        sources: &["leptonai/gpud, matcher NCCL"],
        ..Cause::DEFAULT
    },
];

/// Returns what the Xid of a line stands for.
fn xid_of(line: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(line).to_lowercase();
    let number = match text.split_once("caused by previous xid ") {
        Some((_, number)) => number,
        None => text[text.find("xid (pci:")?..].split_once("): ")?.1,
    };
    let digits = number
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(number.len());
    let number: u32 = number[..digits].parse().ok()?;
    let meaning = meaning_of_xid(number)?;
    Some(format!("Xid {number}: {meaning}"))
}
