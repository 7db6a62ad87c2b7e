//! `gpu.driver`: each GPU is bound to NVIDIA's driver.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.driver"),
    group: Group::Modules,
    title: "each GPU is bound to NVIDIA's driver",
    documentation: Documentation {
        means: "CUDA and every way into GPU memory go through NVIDIA's driver. nouveau keeps it \
                from binding; vfio-pci keeps the GPU for a guest.",
        reads: "/sys/bus/pci/devices/*/driver of the GPUs.",
        judges: "pass: nvidia. info: vfio-pci. fail: none, nouveau or another. skip: no GPU.",
        sources: &["NVIDIA driver README, chapter Known Issues: nouveau"],
    },
    purposes: &[],
    symptom_of: &[CheckId("gpu.present"), CheckId("modules.lockdown")],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let findings: Vec<Finding> = (context.gpus())
        .map(|gpu| {
            let path = format!("/sys/bus/pci/devices/{}/driver", gpu.bdf);
            let driver = context
                .function(gpu.bdf)
                .map_or(Datum::NotCollected, |function| function.driver.clone());
            judge(Subject::gpu(gpu), &path, &driver)
        })
        .collect();
    if findings.is_empty() {
        return vec![super::no_gpu(context)];
    }
    super::once(findings, "all GPUs")
}

fn judge(subject: Subject, path: &str, driver: &Datum<String>) -> Finding {
    let load = Fix::now(
        "Load NVIDIA's driver",
        Action::LoadModule {
            module: "nvidia".to_owned(),
        },
    );
    match driver {
        Datum::Present(driver) => match driver.as_str() {
            "nvidia" => Finding::pass(subject, "bound to nvidia"),
            name if name.contains("vfio") => {
                Finding::info(subject, format!("bound to {name}: it belongs to a guest"))
            }
            "nouveau" | "nova_core" | "NovaCore" => Finding::fail(
                subject,
                format!("bound to {driver}, which keeps NVIDIA's driver out"),
            )
            .fix(
                Fix::at_boot(
                    format!("Keep {driver} from loading"),
                    Action::WriteFile {
                        path: "/etc/modprobe.d/blacklist-nouveau.conf".to_owned(),
                        content: "blacklist nouveau\nblacklist nova_core\noptions nouveau \
                                  modeset=0\n"
                            .to_owned(),
                    },
                )
                .then(Action::Command {
                    line: "update-initramfs -u || dracut --force".to_owned(),
                })
                .risk(
                    Risk::Low,
                    "a screen on this GPU stays dark until nvidia loads",
                ),
            ),
            other => Finding::fail(
                subject,
                format!("bound to {other}, which is not NVIDIA's driver"),
            ),
        }
        .evidence(path, driver.clone()),
        Datum::Missing => Finding::fail(subject, "no driver is bound to it")
            .evidence(path, "no such link")
            .fix(load)
            .symptom_of(CheckId("nvidia.version")),
        absent => Finding::unknown(subject, "its driver", absent),
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    fn bound_to(driver: &str) -> MemorySource {
        example::healthy().link_to(
            &format!("/sys/bus/pci/devices/{}/driver", example::GPUS[1]),
            &format!("../../../../bus/pci/drivers/{driver}"),
        )
    }

    #[test]
    fn nvidia_passes_once_for_all() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
    }

    #[test]
    fn nouveau_and_no_driver_fail_and_vfio_is_worth_knowing() {
        let found = worst(&CHECK, &bound_to("nouveau"));
        assert_eq!(found.verdict, Verdict::Fail);
        assert!(
            found.fixes[0].actions[0]
                .to_string()
                .contains("blacklist nouveau")
        );
        assert_eq!(verdict(&CHECK, &bound_to("vfio-pci")), Verdict::Info);
        let none =
            bound_to("x").without(&format!("/sys/bus/pci/devices/{}/driver", example::GPUS[1]));
        assert_eq!(verdict(&CHECK, &none), Verdict::Fail);
    }

    #[test]
    fn without_gpus_or_without_a_capture_nothing_is_judged() {
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
