use std::collections::BTreeSet;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("uverbs.abi"),
    title: "libibverbs has the provider library for each NIC",
    why: "libibverbs drives a NIC through a provider library (libmlx5-rdmav*.so). If it is not \
          installed, as in small container images, programs find no device or print `couldn't load \
          driver`.",
    inputs: "/sys/class/infiniband_verbs/abi_version; the libraries libibverbs.so.1 and \
          libibverbs/lib*-rdmav*.so; the drivers of the NICs.",
    criteria: "pass: the ABI version is 6 and each NIC has its library. warn: otherwise. skip: no \
               NIC. unknown: the list of libraries was not collected.",
    sources: &[
        "rdma-core libibverbs/init.c, providers/*",
        "Linux include/uapi/rdma/ib_user_verbs.h (IB_USER_VERBS_ABI_VERSION)",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["ofed.flavour"],
    scope: Scope::Node(run),
    ..super::CHECK
};

const ABI: &str = "/sys/class/infiniband_verbs/abi_version";

fn run(context: &Context<'_>) -> Judgement {
    let nics = context.nics();
    if nics.is_empty() {
        return Err(runner::no_nic(context));
    }
    let abi = context.text(ABI);
    if let Ok(version) = abi.as_ref().map(String::as_str)
        && version != "6"
    {
        return Ok(Finding::warn(format!(
            "the kernel has ABI version {version} of verbs, and libibverbs has 6"
        ))
        .evidence(ABI, version)
        .fix(install()));
    }
    let list = context.text(virtual_path::LIBRARIES);
    let text = match list.by_ref() {
        // None of the libraries that are collected is installed.
        Err(Absence::Missing) => "",
        list => list.known("the list of libraries")?.as_str(),
    };
    let lacks = if !text.lines().any(|line| line.contains("/libibverbs.so.1")) {
        vec!["libibverbs.so.1".to_owned()]
    } else {
        let providers: BTreeSet<&str> = (nics.iter())
            .filter_map(|nic| context.function(nic.bdf)?.driver.as_ref().ok())
            .filter_map(|driver| provider(driver))
            .collect();
        (providers.into_iter())
            .filter(|name| !text.contains(&format!("/lib{name}-rdmav")))
            .map(|name| format!("lib{name}-rdmav*.so"))
            .collect()
    };
    let finding = if lacks.is_empty() {
        Finding::pass("libibverbs has the provider library for each NIC")
    } else {
        Finding::warn(format!(
            "{} is not installed: programs find no RDMA device",
            lacks.join(", ")
        ))
        .fix(install())
    };
    Ok(finding.evidence(ABI, abi.shown()))
}

/// Returns the provider of rdma-core for NICs of a driver.
fn provider(driver: &str) -> Option<&'static str> {
    Some(match driver {
        "mlx5_core" => "mlx5",
        "mlx4_core" => "mlx4",
        "bnxt_en" => "bnxt_re",
        "ice" | "i40e" | "idpf" | "irdma" => "irdma",
        "efa" => "efa",
        "erdma" => "erdma",
        "mana" => "mana",
        _ => return None,
    })
}

fn install() -> Fix {
    Fix::run(
        "Install rdma-core, in the container if there is one",
        "apt-get install ibverbs-providers || dnf install libibverbs",
    )
    .persistence(Persistence::Permanent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn with(libraries: &str) -> MemorySource {
        example::healthy().file(virtual_path::LIBRARIES, libraries)
    }

    #[test]
    fn a_library_for_each_nic_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
    }

    #[test]
    fn the_summary_names_the_library_that_is_not_installed() {
        let found = worst(&CHECK, &with("/usr/lib64/libcuda.so.1 -> x\n"));
        assert!(
            found.summary.starts_with("libibverbs.so.1"),
            "{}",
            found.summary
        );
        let found = judged(&CHECK, &with("/usr/lib64/libibverbs.so.1 -> x\n"), Warn);
        assert!(found.summary.starts_with("libmlx5"), "{}", found.summary);
        assert_eq!(verdict(&CHECK, &example::healthy().file(ABI, "7\n")), Warn);
    }
}
