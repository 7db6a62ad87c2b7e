use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.present"),
    title: "NVIDIA GPUs are on the PCI bus and answer",
    why: "GPUDirect RDMA needs a GPU. If the config space of a GPU reads as ones, the GPU has \
          fallen off the bus and does not work until it is power-cycled.",
    inputs: "/sys/bus/pci/devices/*/{vendor,class,config}: vendor 0x10de, class 0x0300xx or \
             0x0302xx; in lspci's output, revision ff and header type 7f; the GPUs that \
             /proc/driver/nvidia/gpus and CUDA list.",
    criteria: "fail: no GPU, or one whose config space reads as ones. unknown: the PCI functions, \
               or the identity of some of them, were not captured, or a listing, which may be cut \
               off, has none.",
    sources: &[
        "PCI Code and ID Assignment Specification, base class 03h",
        "PCI Express Base Specification 2.3.2: unsupported requests read as ones",
    ],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let mut findings: Vec<Finding> = (context.gpus())
        .map(|gpu| {
            let finding = match context.function(gpu.bdf) {
                Some(function) if function.gone => gone(function, "GPU"),
                _ => Finding::pass("it answers").evidence("PCI address", gpu.bdf),
            };
            finding.about(Subject::gpu(gpu))
        })
        .collect();
    let every = context.every_gpu();
    if findings.is_empty() {
        if every.is_err() {
            return Err(runner::no_gpu(context));
        }
        findings.push(
            Finding::fail("there is no NVIDIA GPU")
                .evidence(
                    "/sys/bus/pci/devices",
                    "no function with vendor 0x10de, class 0x03",
                )
                .fix(Fix::manual(
                    "Make a GPU visible",
                    if context.is_guest() {
                        "pass a GPU through to this virtual machine"
                    } else {
                        "reseat the card and its power cables"
                    },
                )),
        );
    } else if every.is_err() {
        findings.push(Finding::unknown(
            "whether there are more GPUs, since the identity of some PCI functions",
            &every,
        ));
    }
    Ok(findings)
}

/// Returns the finding about a card whose function no longer answers.
pub(super) fn gone(function: &Function, card: &str) -> Finding {
    Finding::fail(
        "it does not answer: its config space reads as ones, because it has fallen off the bus or \
         has no power",
    )
    .evidence(
        format!("/sys/bus/pci/devices/{}/config", function.bdf),
        "ff ff ff ff …",
    )
    .fix(
        Fix::manual(
            format!("Power-cycle the {card}"),
            format!(
                "power-cycle the machine; if the {card} answers again, look for Xid 79 and AER \
                 errors in the kernel log"
            ),
        )
        .risk(Risk::Medium, "everything on the machine stops"),
    )
    .fix(
        Fix::hardware(
            "Look at the card if it happens again",
            "reseat the card and its power cables",
        )
        .risk(Risk::Medium, "everything on the machine stops"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture;
    use crate::checks::fixture::*;

    fn verdicts(node: &MemorySource) -> Vec<Verdict> {
        fixture::verdicts(&CHECK, node)
    }

    fn gpu(config: &[u8]) -> MemorySource {
        let place = "/sys/devices/pci0000:00/0000:00:03.0";
        MemorySource::new()
            .link_to(
                "/sys/bus/pci/devices/0000:00:03.0",
                "../../../devices/pci0000:00/0000:00:03.0",
            )
            .file(&format!("{place}/vendor"), "0x10de\n")
            .file(&format!("{place}/class"), "0x030200\n")
            .file(&format!("{place}/config"), config)
    }

    #[test]
    fn a_gpu_that_answers_passes() {
        let mut config = vec![0; 64];
        config[..4].copy_from_slice(&[0xde, 0x10, 0x30, 0x23]);
        config[8..12].copy_from_slice(&[0, 0, 2, 3]);
        assert_eq!(verdicts(&gpu(&config)), [Pass]);
    }

    #[test]
    fn a_gpu_that_fell_off_the_bus_and_no_gpu_at_all_fail() {
        assert_eq!(verdicts(&gpu(&[0xff; 64])), [Fail]);
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdicts(&bare), [Fail]);
    }

    #[test]
    fn an_uncaptured_vendor_does_not_mean_that_there_is_no_gpu() {
        let place = "/sys/devices/pci0000:00/0000:00:03.0";
        let unnamed = gpu(&[]).without(&format!("{place}/vendor"));
        assert_eq!(verdicts(&unnamed), [Unknown]);
        // The class alone shows that it is not a GPU.
        let storage = unnamed.file(&format!("{place}/class"), "0x010802\n");
        assert_eq!(verdicts(&storage), [Fail]);
        // The driver lists a GPU that the list of functions does not have.
        let listed = storage.file("/proc/driver/nvidia/gpus/0000:41:00.0/information", "");
        assert_eq!(verdicts(&listed), [Unknown]);
    }

    #[test]
    fn an_unidentified_function_may_be_one_more_gpu() {
        let at = format!("/sys/bus/pci/devices/{}", example::GPUS[1]);
        let node = example::healthy()
            .without(&format!("{at}/config"))
            .without(&format!("{at}/vendor"));
        let mut found = findings(&CHECK, &node);
        assert_eq!(found.pop().unwrap().verdict, Unknown);
        assert_eq!(found.len(), 7);
    }

    #[test]
    fn a_gpu_with_revision_ff_in_lspci_fails() {
        let text = "01:00.0 3D controller [0302]: NVIDIA Corporation X [10de:2330] (rev ff)\n\
                    \t!!! Unknown header type 7f\n\tKernel driver in use: nvidia\n";
        let found = of_listing(&CHECK, text);
        assert_eq!(found[0].verdict, Fail, "{found:?}");
    }

    #[test]
    fn a_tree_without_identities_is_unknown() {
        let found = of_listing(&CHECK, "-[0000:00]-+-00.0\n           \\-01.0\n");
        assert_eq!(found[0].verdict, Unknown);
    }

    #[test]
    fn a_capture_without_pci_is_unknown() {
        assert_eq!(verdicts(&MemorySource::partial()), [Unknown]);
    }
}
