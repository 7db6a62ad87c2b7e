use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("iommu.faults"),
    title: "the IOMMU has not refused any access of a GPU or NIC",
    why: "A fault that names a NIC or a GPU is an access to a peer that the IOMMU refused: the \
          transfer failed or hangs.",
    inputs: "The kernel log: `DMAR: … fault`, `AMD-Vi: Event logged [IO_PAGE_FAULT`, `arm-smmu-v3 \
             … event`, with the address of a GPU or NIC.",
    criteria: "fail: such a line. pass: none. unknown: the log may not be read. skip: no GPU and \
               no NIC.",
    sources: &[
        "Linux drivers/iommu/intel/dmar.c, drivers/iommu/amd/iommu.c",
        "https://github.com/NVIDIA/nccl/issues/2079",
    ],
    symptom_of: &["iommu.mode", "acs.path"],
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let mut devices: Vec<(Subject, Bdf)> = (context.gpus())
        .map(|gpu| (Subject::gpu(gpu), gpu.bdf))
        .collect();
    devices.extend(
        context
            .nics()
            .iter()
            .map(|nic| (Subject::nic(nic), nic.bdf)),
    );
    if devices.is_empty() && context.inventory.tree.is_ok() {
        return Err(Unjudged::skip("there is no GPU and no RDMA NIC"));
    }
    let log = context.text(virtual_path::KERNEL_LOG);
    let text = log.by_ref().known("the kernel log")?;
    let faults: Vec<&str> = text.lines().filter(|line| is_fault(line)).collect();
    let mut findings = Vec::new();
    for (subject, bdf) in devices {
        let named: Vec<&&str> = faults.iter().filter(|line| names(line, bdf)).collect();
        let (Some(first), count) = (named.first(), named.len()) else {
            continue;
        };
        findings.push(
            Finding::fail(format!(
                "the IOMMU refused {count} of its accesses{}",
                if count == 1 { "" } else { " or more" }
            ))
            .about(subject)
            .evidence("kernel log", **first)
            .fix(
                Fix::at_boot(
                    "Make the IOMMU pass addresses through",
                    Action::boot("iommu=pt"),
                )
                .risk(
                    Risk::Low,
                    "devices of the host can then access all of its memory",
                ),
            ),
        );
    }
    if findings.is_empty() {
        let finding = Finding::pass("no fault names a GPU or NIC");
        findings.push(match faults.last() {
            Some(line) => finding.evidence("kernel log, another device", *line),
            None => finding,
        });
    }
    Ok(findings)
}

fn is_fault(line: &str) -> bool {
    let intel = line.contains("DMAR:")
        && ["fault", "[DMA Read", "[DMA Write"]
            .iter()
            .any(|word| line.contains(word));
    let amd = line.contains("AMD-Vi:")
        && ["IO_PAGE_FAULT", "INVALID_DEVICE_REQUEST"]
            .iter()
            .any(|word| line.contains(word));
    let arm = line.contains("arm-smmu")
        && ["F_TRANSLATION", "F_PERMISSION", "Unhandled context fault"]
            .iter()
            .any(|word| line.contains(word));
    intel || amd || arm
}

/// Returns whether a line names a function, with its domain or, in domain 0, without it as DMAR
/// does.
fn names(line: &str, bdf: Bdf) -> bool {
    let whole = bdf.to_string();
    if line.contains(&whole) {
        return true;
    }
    let Some((_, short)) = whole.split_once(':').filter(|_| bdf.domain == 0) else {
        return false;
    };
    line.match_indices(short).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|c| c != ':' && !c.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn logged(line: &str) -> MemorySource {
        example::healthy().file(virtual_path::KERNEL_LOG, format!("[   1.0] boot\n{line}\n"))
    }

    #[test]
    fn faults_of_intel_and_amd_name_their_device() {
        let intel = "[  99.1] DMAR: [DMA Write NO_PASID] Request device [19:00.0] fault addr \
                     0x24fe0000000 [fault reason 0x05] PTE Write access is not set";
        let found = worst(&CHECK, &logged(intel));
        assert_eq!(
            (found.verdict, found.subject.to_string().as_str()),
            (Fail, "mlx5_1")
        );
        let amd = "[  99.1] mlx5_core 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT \
                   domain=0x0025 address=0x3fff flags=0x0020]";
        assert_eq!(worst(&CHECK, &logged(amd)).subject.to_string(), "mlx5_4");
    }

    #[test]
    fn faults_of_other_devices_and_domains_pass() {
        let other = "[ 9.1] DMAR: [DMA Read] Request device [00:17.0] fault addr 0x0";
        assert_eq!(verdict(&CHECK, &logged(other)), Pass);
        let domain = "[ 9.1] DMAR: [DMA Read] Request device [0001:19:00.0] fault addr 0x0";
        assert_eq!(verdict(&CHECK, &logged(domain)), Pass);
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        assert_eq!(findings(&CHECK, &example::healthy()).len(), 1);
    }
}
