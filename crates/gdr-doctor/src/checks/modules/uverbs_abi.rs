//! `uverbs.abi`: libibverbs finds the library for each NIC, and speaks the kernel's language.

use std::collections::BTreeSet;

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Persistence};

pub(super) const CHECK: Check = Check {
    id: CheckId("uverbs.abi"),
    group: Group::Modules,
    title: "libibverbs has the library for each NIC",
    documentation: Documentation {
        means: "libibverbs drives a NIC through a library of its maker's (libmlx5-rdmav*.so). \
                Where that is not installed, as in small container images, programs see no device, \
                or say `couldn't load driver`.",
        reads: "/sys/class/infiniband_verbs/abi_version; the libraries libibverbs.so.1 and \
                libibverbs/lib*-rdmav*.so; the drivers of the NICs.",
        judges: "pass: the ABI is 6 and each NIC has its library. warn: not so. skip: no NIC. \
                 unknown: the libraries were not collected.",
        sources: &[
            "rdma-core libibverbs/init.c, providers/*",
            "Linux include/uapi/rdma/ib_user_verbs.h (IB_USER_VERBS_ABI_VERSION)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("ofed.flavour")],
    run,
};

const ABI: &str = "/sys/class/infiniband_verbs/abi_version";

fn run(context: &Context<'_>) -> Vec<Finding> {
    let nics = context.nics();
    if nics.is_empty() {
        return vec![super::no_nic(context)];
    }
    let abi = context.text(ABI);
    if let Datum::Present(version) = abi.as_ref().map(String::as_str)
        && version != "6"
    {
        return vec![
            Finding::warn(
                Subject::Node,
                format!("the kernel speaks version {version} of verbs, and libibverbs 6"),
            )
            .evidence(ABI, version)
            .fix(install()),
        ];
    }
    let list = context.text(virtual_path::LIBRARIES);
    let text = match &list {
        Datum::Present(text) => text.as_str(),
        // No library that matters at all.
        Datum::Missing => "",
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of libraries",
                absent,
            )];
        }
    };
    let lacks = if !text.lines().any(|line| line.contains("/libibverbs.so.1")) {
        vec!["libibverbs.so.1".to_owned()]
    } else {
        let providers: BTreeSet<&str> = (nics.iter())
            .filter_map(|nic| context.function(nic.bdf)?.driver.present())
            .filter_map(|driver| provider(driver))
            .collect();
        (providers.into_iter())
            .filter(|name| !text.contains(&format!("/lib{name}-rdmav")))
            .map(|name| format!("lib{name}-rdmav*.so"))
            .collect()
    };
    let finding = if lacks.is_empty() {
        Finding::pass(Subject::Node, "libibverbs has the library for each NIC")
    } else {
        Finding::warn(
            Subject::Node,
            format!(
                "{} is not installed: programs see no RDMA device",
                lacks.join(", ")
            ),
        )
        .fix(install())
    };
    vec![finding.evidence(ABI, abi.to_string())]
}

/// The library of rdma-core for NICs of this driver.
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
    Fix::now(
        "Install rdma-core, in the container where there is one",
        Action::Command {
            line: "apt-get install ibverbs-providers || dnf install libibverbs".to_owned(),
        },
    )
    .persistence(Persistence::Permanent)
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, worst};
    use crate::finding::Verdict;

    fn with(libraries: &str) -> MemorySource {
        example::healthy().file(virtual_path::LIBRARIES, libraries)
    }

    #[test]
    fn a_library_for_each_nic_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
    }

    #[test]
    fn what_is_not_installed_is_named() {
        let found = worst(&CHECK, &with("/usr/lib64/libcuda.so.1 -> x\n"));
        assert!(
            found.summary.starts_with("libibverbs.so.1"),
            "{}",
            found.summary
        );
        let found = worst(&CHECK, &with("/usr/lib64/libibverbs.so.1 -> x\n"));
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.summary.starts_with("libmlx5"), "{}", found.summary);
        assert_eq!(
            verdict(&CHECK, &example::healthy().file(ABI, "7\n")),
            Verdict::Warn
        );
    }

    #[test]
    fn without_nics_or_a_capture_nothing_is_judged() {
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        let unread = example::healthy().not_collected(virtual_path::LIBRARIES);
        assert_eq!(verdict(&CHECK, &unread), Verdict::Unknown);
    }
}
