use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("virt"),
    title: "it is known whether this is a guest or a container",
    why: "In a guest the PCI tree may be emulated, and the host controls ACS and the IOMMU. In a \
          container the host controls modules, limits and device nodes. Other checks depend on it.",
    inputs: "The flag `hypervisor` in /proc/cpuinfo; /.dockerenv, /run/.containerenv and \
          /proc/1/cgroup; /sys/class/dmi/id; /proc/version for gVisor.",
    criteria: "info: bare metal, guest or container. unknown: not collected.",
    sources: &[
        "Linux arch/x86/kernel/cpu/hypervisor.c",
        "systemd-detect-virt(1)",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let facts = context.facts();
    if facts.machine.is_err() && facts.container.is_err() {
        return Ok(Finding::unknown(
            "whether this is a guest or a container",
            &facts.machine,
        ));
    }
    let machine = match facts.machine {
        Ok(Machine::Bare) => Some("bare metal"),
        Ok(Machine::Virtual) => Some("a guest of a hypervisor"),
        _ => None,
    };
    let version = context.text("/proc/version");
    let gvisor = version.is_ok_and(|text| text.contains("gVisor"));
    let container = match facts.container {
        _ if gvisor => Some("a sandbox of gVisor"),
        Ok(Container::Yes) => Some("a container"),
        Ok(Container::No) => Some("not a container"),
        _ => None,
    };
    let known: Vec<&str> = machine.into_iter().chain(container).collect();
    let mut finding = Finding::info(format!("this is {}", known.join(" and ")));
    for name in ["sys_vendor", "product_name"] {
        let path = format!("/sys/class/dmi/id/{name}");
        if let Ok(text) = context.text(&path) {
            finding = finding.evidence(path, text);
        }
    }
    Ok(finding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn guests_and_containers_are_named() {
        let found = judged(&CHECK, &example::healthy(), Info);
        assert_eq!(found.summary, "this is bare metal and not a container");
        let guest = example::healthy()
            .file("/proc/cpuinfo", "flags\t: fpu hypervisor\n")
            .file("/.dockerenv", "");
        let found = worst(&CHECK, &guest);
        assert_eq!(
            found.summary,
            "this is a guest of a hypervisor and a container"
        );
    }
}
