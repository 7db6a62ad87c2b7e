use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.symbol"),
    title: "the RDMA stack supports peer-memory modules",
    why: "nvidia_peermem registers with ib_core by a function that MLNX_OFED, DOCA and some \
          distribution kernels have and the upstream kernel does not. A module that was built \
          without that function fails to load with `Invalid argument`: its initialization only \
          returns that error.",
    inputs: "ib_register_peer_memory_client in /proc/kallsyms; whether nvidia-peermem depends on \
             ib_core in the kernel's modules.dep.",
    criteria: "pass: a module is loaded, or the symbol exists. fail: no symbol, and dma-buf does \
               not work. info: no symbol, but dma-buf works. warn: no symbol, and it is not known \
               whether dma-buf works. unknown: the symbols are hidden. skip: no RDMA NIC.",
    sources: &[
        "NVIDIA open-gpu-kernel-modules kernel-open/nvidia-peermem/nvidia-peermem.c \
             (NV_MLNX_IB_PEER_MEM_SYMBOLS_PRESENT)",
        "https://bugs.launchpad.net/bugs/1923104",
        "https://github.com/Mellanox/nv_peer_memory/issues/116",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Node(run),
    ..super::CHECK
};

const SYMBOL: &str = "ib_register_peer_memory_client";

fn run(context: &Context<'_>) -> Judgement {
    if let Ok(module) = gpudirect_support::peer_module(context) {
        return Ok(Finding::pass(format!("{module} is loaded")).evidence("/proc/modules", module));
    }
    if context.nics().is_empty() {
        return Err(runner::no_nic(context));
    }
    let symbols = match context.text(virtual_path::SYMBOLS) {
        Ok(symbols) => symbols,
        absent => {
            return Ok(Finding::unknown(
                "whether ib_core supports peer-memory \
                 modules", // The kernel hides the whole list together with the addresses.
                &absent.and(Err::<(), _>(Absence::Denied)),
            ));
        }
    };
    let line = symbols
        .lines()
        .find(|line| line.split_whitespace().any(|word| word == SYMBOL));
    let Some(line) = line else {
        return Ok(unsupported(
            context,
            "ib_core does not support peer-memory modules (the kernel's own RDMA stack): \
             nvidia_peermem fails to load with `Invalid argument`",
        )
        .evidence("/proc/kallsyms", format!("no {SYMBOL}")));
    };
    if let Some(dependencies) = built_without(context) {
        return Ok(unsupported(
            context,
            "nvidia_peermem was built without the loaded RDMA stack and fails to load with \
             `Invalid argument`",
        )
        .evidence("/proc/kallsyms", line)
        .evidence("modules.dep", dependencies));
    }
    Ok(Finding::pass("ib_core supports peer-memory modules").evidence("/proc/kallsyms", line))
}

/// Returns the line of modules.dep by which nvidia-peermem does not depend on ib_core, so that it was built without it.
fn built_without(context: &Context<'_>) -> Option<String> {
    // An ib_core that is built into the kernel is not a dependency of any module.
    context.facts().module("ib_core").as_ref().ok()?;
    let text = context.text(virtual_path::MODULE_FILES).ok()?;
    let line = text.lines().find(|line| {
        let file = line.split(':').next().unwrap_or_default();
        file.contains("nvidia-peermem.ko")
    })?;
    (!line.contains("ib_core.ko")).then(|| line.to_owned())
}

fn unsupported(context: &Context<'_>, why: &str) -> Finding {
    let rebuild = Fix::manual(
        "Install MLNX_OFED or DOCA, then rebuild NVIDIA's modules",
        "install MLNX_OFED or DOCA, reinstall the NVIDIA driver (or run `dkms install --force`) so \
         that nvidia_peermem is built against it, then reboot",
    )
    .risk(
        Risk::Medium,
        "RDMA connections and GPU processes end while drivers are replaced",
    );
    let dmabuf = Fix::manual(
        "Use dma-buf instead",
        "install nvidia-open 515 or later on kernel 5.12 or later: dma-buf needs no peer-memory \
         module",
    )
    .risk(Risk::Medium, "every process on the GPUs ends");
    let by_dmabuf = if context.facts().nvidia == Err(Absence::Missing) {
        // Whether a driver that is not loaded supports dma-buf is not known.
        Err(Absence::Missing)
    } else {
        gpudirect_support::dmabuf_everywhere(context)
    };
    let (verdict, rest) = match by_dmabuf {
        Ok(true) => (Verdict::Info, "; dma-buf works instead"),
        Ok(false) => (Verdict::Fail, ", and dma-buf does not work either"),
        _ => (Verdict::Warn, "; it is not known whether dma-buf works"),
    };
    let finding = Finding::new(verdict, format!("{why}{rest}"));
    if verdict == Verdict::Info {
        finding
    } else {
        finding.fix(dmabuf).fix(rebuild)
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn unloaded() -> MemorySource {
        without_peermem().without(virtual_path::MODULE_FILES)
    }

    fn inbox() -> MemorySource {
        unloaded().file(virtual_path::SYMBOLS, "nvidia_p2p_get_pages [nvidia]\n")
    }

    #[test]
    fn a_loaded_module_or_the_symbol_passes() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        assert_eq!(verdict(&CHECK, &unloaded()), Pass);
    }

    #[test]
    fn without_the_symbol_the_verdict_depends_on_dma_buf() {
        assert_eq!(verdict(&CHECK, &inbox()), Info);
        let unknown = inbox().without(virtual_path::VERBS_DEVICES);
        assert_eq!(verdict(&CHECK, &unknown), Warn);
        let old = unknown.file("/proc/sys/kernel/osrelease", "5.4.0\n");
        let found = judged(&CHECK, &old, Fail);
        assert_contains!(found.summary, "Invalid argument");
    }

    #[test]
    fn a_module_that_was_built_without_ib_core_is_a_warning() {
        let line = "updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko\n";
        let node = unloaded()
            .file(virtual_path::MODULE_FILES, line)
            .without(virtual_path::VERBS_DEVICES);
        assert_eq!(verdict(&CHECK, &node), Warn);
        let good = "extra/nvidia-peermem.ko.xz: extra/nvidia.ko.xz extra/ib_core.ko.xz\n";
        let node = node.file(virtual_path::MODULE_FILES, good);
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn hidden_symbols_are_not_missing_symbols() {
        let hidden = unloaded().denied(virtual_path::SYMBOLS);
        assert_eq!(verdict(&CHECK, &hidden), Unknown);
        let none = unloaded().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
