use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.params"),
    title: "no parameter of NVIDIA's driver interferes with peer access",
    why: "GrdmaPciTopoCheckOverride=1 makes the driver skip the check that the platform supports \
          peer access; 2 makes it refuse every mapping for peers. Old GPU-initiated transports \
          needed PeerMappingOverride and EnableStreamMemOPs.",
    inputs: "/proc/driver/nvidia/params.",
    criteria: "warn: GrdmaPciTopoCheckOverride is 1 or 2. pass: otherwise; the evidence has the \
               values. skip: the driver is not loaded.",
    sources: &[
        "NVIDIA open-gpu-kernel-modules kernel-open/nvidia/nv-reg.h",
        "https://github.com/NVIDIA/nvshmem/issues/23",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

const PATH: &str = "/proc/driver/nvidia/params";
const OVERRIDE: &str = "GrdmaPciTopoCheckOverride";
const SHOWN: [&str; 5] = [
    OVERRIDE,
    "EnableStreamMemOPs",
    "EnableResizableBar",
    "EnablePCIERelaxedOrderingMode",
    "RegistryDwords",
];

fn run(context: &Context<'_>) -> Judgement {
    let text = context.text(PATH).known_or_skip(
        "the list of parameters of NVIDIA's driver",
        "NVIDIA's driver is not loaded",
    )?;
    let value = |name: &str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim())
    };
    let mut finding = match value(OVERRIDE) {
        Some("1") => Finding::warn(
            "GrdmaPciTopoCheckOverride=1: the driver does not check that the platform supports \
             peer access; data may be lost without an error",
        )
        .fix(unset()),
        Some("2") => {
            Finding::warn("GrdmaPciTopoCheckOverride=2: the driver refuses every mapping for peers")
                .fix(unset())
        }
        _ => Finding::pass("no parameter interferes with peer access"),
    };
    for name in SHOWN {
        if let Some(value) = value(name) {
            finding = finding.evidence(format!("{PATH}: {name}"), value);
        }
    }
    Ok(finding)
}

fn unset() -> Fix {
    Fix::manual(
        "Remove the parameter",
        "remove NVreg_GrdmaPciTopoCheckOverride from /etc/modprobe.d, rebuild the initramfs, and \
         reload the driver",
    )
    .effect(Effect::AtReboot)
    .risk(Risk::Medium, "every process on the GPUs ends")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn values_are_shown_and_overrides_are_warnings() {
        let found = worst(&CHECK, &example::healthy());
        assert_eq!((found.verdict, found.evidence.len()), (Pass, 5));
        for value in ["1", "2"] {
            let node = example::healthy().file(PATH, format!("{OVERRIDE}: {value}\n"));
            assert_eq!(verdict(&CHECK, &node), Warn);
        }
    }
}
