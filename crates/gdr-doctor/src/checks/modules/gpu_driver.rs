use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.driver"),
    title: "each GPU is bound to NVIDIA's driver",
    why: "CUDA and all access to GPU memory need NVIDIA's driver. nouveau prevents it from \
          binding; vfio-pci reserves the GPU for a guest.",
    inputs: "/sys/bus/pci/devices/*/driver of the GPUs.",
    criteria: "pass: nvidia. info: vfio-pci. fail: none, nouveau or another. skip: no GPU.",
    sources: &["NVIDIA driver README, chapter Known Issues: nouveau"],
    symptom_of: &["gpu.present", "modules.lockdown"],
    scope: Scope::Gpu(judge),
    together: Some("all GPUs"),
    ..super::CHECK
};

fn judge(_: &Context<'_>, gpu: &GpuDevice, function: &Function) -> Judgement {
    let path = format!("/sys/bus/pci/devices/{}/driver", gpu.bdf);
    let load = Fix::now("Load NVIDIA's driver", Action::load("nvidia"));
    Ok(match &function.driver {
        Ok(driver) => match driver.as_str() {
            "nvidia" => Finding::pass("bound to nvidia"),
            name if name.contains("vfio") => {
                Finding::info(format!("bound to {name}: it is reserved for a guest"))
            }
            "nouveau" | "nova_core" | "NovaCore" => Finding::fail(format!(
                "bound to {driver}, which prevents NVIDIA's driver from binding"
            ))
            .fix(
                Fix::at_boot(
                    format!("Keep {driver} from loading"),
                    Action::file(
                        "/etc/modprobe.d/blacklist-nouveau.conf",
                        "blacklist nouveau\nblacklist nova_core\noptions nouveau \
                                  modeset=0\n",
                    ),
                )
                .then(Action::run("update-initramfs -u || dracut --force"))
                .risk(
                    Risk::Low,
                    "a display on this GPU stays dark until nvidia is loaded",
                ),
            ),
            other => Finding::fail(format!("bound to {other}, which is not NVIDIA's driver")),
        }
        .evidence(path, driver),
        Err(Absence::Missing) => Finding::fail("no driver is bound to it")
            .evidence(path, "no such link")
            .fix(load)
            .symptom_of("nvidia.version"),
        absent => Finding::unknown("its driver", absent),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn bound_to(driver: &str) -> MemorySource {
        example::healthy().link_to(
            &format!("/sys/bus/pci/devices/{}/driver", example::GPUS[1]),
            &format!("../../../../bus/pci/drivers/{driver}"),
        )
    }

    #[test]
    fn nvidia_passes_with_one_finding_for_all() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn nouveau_and_no_driver_fail_and_vfio_is_info() {
        let found = judged(&CHECK, &bound_to("nouveau"), Fail);
        assert!(
            found.fixes[0].actions[0]
                .to_string()
                .contains("blacklist nouveau")
        );
        assert_eq!(verdict(&CHECK, &bound_to("vfio-pci")), Info);
        let none =
            bound_to("x").without(&format!("/sys/bus/pci/devices/{}/driver", example::GPUS[1]));
        assert_eq!(verdict(&CHECK, &none), Fail);
    }
}
