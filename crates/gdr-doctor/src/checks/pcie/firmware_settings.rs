use std::collections::BTreeMap;

use crate::checks::prelude::*;

/// The fewest outstanding reads that a vendor's guide sets, other than 0, which is automatic.
const ENOUGH_READS: u32 = 44;

pub(super) const CHECK: Check = Check {
    id: CheckId("nic.settings"),
    title: "the settings of ConnectX firmware fit GPUDirect RDMA",
    why: "Settings in the firmware of a ConnectX limit its outstanding reads, order its writes, turn \
          ATS and RoCE on or off, and make a port InfiniBand or Ethernet. They outlast the system \
          that was installed when they were made.",
    inputs: "What `mlxconfig -d DEVICE query` prints, in a capture: MAX_ACC_OUT_READ, \
             ADVANCED_PCI_SETTINGS, PCI_WR_ORDERING, ATS_ENABLED, ROCE_CONTROL, LINK_TYPE_P1 and P2, \
             each as of the next boot. A live node is not asked.",
    criteria: "fail: RoCE is off and a port is Ethernet. warn: MAX_ACC_OUT_READ below 44 and not 0, \
               or a port that changes its link layer at the next boot. info: MAX_ACC_OUT_READ is \
               hidden, all writes are relaxed, or ATS is on and its register was not read. skip: \
               no such settings. unknown: the RDMA devices are not known.",
    sources: &[
        "https://docs.nvidia.com/gpudirect-storage/troubleshooting-guide/cheat-sheet-for-diagnosing-problems.html \
         (ADVANCED_PCI_SETTINGS, MAX_ACC_OUT_READ)",
        "https://docs.nvidia.com/networking/display/kubernetes2570/nic-conf-operator/configuration-details.html \
         (MAX_ACC_OUT_READ=0, LINK_TYPE_P1)",
        "https://docs.nvidia.com/ai-enterprise/planning-resource/optimizing-vm-configuration-ai-inference/latest/appendix.html \
         (ATS_ENABLED)",
        "ibv_reg_mr(3): IBV_ACCESS_RELAXED_ORDERING (PCI_WR_ORDERING)",
        "Linux commit cc9defcbb8fa: without RoCE there is no GID table (ROCE_CONTROL)",
    ],
    scope: Scope::Several(run),
    otherwise: Some("no output of mlxconfig is known"),
    ..super::CHECK
};

/// The settings of a device, by name.
pub(super) struct Settings(BTreeMap<String, String>);

impl Settings {
    /// Returns the settings of a device, where a capture has them.
    pub(super) fn of(context: &Context<'_>, device: &str) -> Option<Self> {
        let text = context.source.text(&virtual_path::nic_settings(device));
        let lines = text.ok()?;
        let pairs = lines.lines().filter_map(|line| line.split_once(' '));
        Some(Self(
            pairs
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        ))
    }

    /// Returns the word or number of a setting: `per_mkey` of `per_mkey(0)`.
    fn value(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.split('(').next()
    }

    /// Returns the layer that a port has from the next boot on.
    fn layer(&self, port: u32) -> Option<&'static str> {
        match self.value(&format!("LINK_TYPE_P{port}"))? {
            "ETH" => Some("Ethernet"),
            "IB" => Some("InfiniBand"),
            _ => None,
        }
    }
}

/// A setting that does not fit, and the assignments that mend it.
struct Misfit {
    verdict: Verdict,
    what: String,
    set: String,
}

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let devices = match &context.inventory.rdma {
        Err(Absence::Missing) => &[],
        devices => devices
            .by_ref()
            .known("the list of RDMA devices")?
            .as_slice(),
    };
    Ok(runner::each(devices, |device| {
        let subject = match device.function {
            Ok(bdf) => Subject::Nic {
                name: device.name.clone(),
                bdf,
            },
            Err(_) => Subject::Named(device.name.clone()),
        };
        (subject, judge(context, device))
    }))
}

fn judge(context: &Context<'_>, device: &RdmaDevice) -> Judgement {
    let settings = Settings::of(context, &device.name).ok_or(Unjudged::OutOfScope)?;
    let misfits: Vec<Misfit> = (reads(context, device, &settings).into_iter())
        .chain(writes(&settings))
        .chain(ats(context, device, &settings))
        .chain(roce(&settings, device))
        .chain(
            device
                .ports
                .iter()
                .filter_map(|port| layer(&settings, port)),
        )
        .collect();
    let Some(verdict) = misfits.iter().map(|it| it.verdict).max() else {
        return Ok(Finding::pass("the settings of its firmware fit").evidence_all(&settings.0));
    };
    let join = |part: fn(&Misfit) -> &str, between| {
        let parts: Vec<&str> = misfits.iter().map(part).collect();
        parts.join(between)
    };
    let set = join(|it| &it.set, " ");
    let line = format!("mlxconfig -d {} set {set}", device.name);
    Ok(Finding::new(verdict, join(|it| &it.what, "; "))
        .evidence_all(&settings.0)
        .fix(
            Fix::at_boot("Set the firmware's settings", Action::run(line))
                .risk(Risk::Medium, "it applies after the NIC's next reset"),
        ))
}

fn reads(context: &Context<'_>, device: &RdmaDevice, settings: &Settings) -> Option<Misfit> {
    let Some(reads) = settings.value("MAX_ACC_OUT_READ") else {
        let is_hidden = settings.value("ADVANCED_PCI_SETTINGS") == Some("False");
        return is_hidden.then(|| Misfit {
            verdict: Verdict::Info,
            what: "the limit of outstanding reads (MAX_ACC_OUT_READ) is hidden and stays as it is"
                .into(),
            set: "ADVANCED_PCI_SETTINGS=1".into(),
        });
    };
    let count: u32 = reads.parse().ok()?;
    // NVIDIA's guide sets 0 on ConnectX-7 and 44 on ConnectX-6.
    let path = format!("/sys/class/infiniband/{}/hca_type", device.name);
    let model = context.source.text(&path).unwrap_or_default();
    let wanted = if model.starts_with("ConnectX7") {
        0
    } else {
        ENOUGH_READS
    };
    (1..ENOUGH_READS).contains(&count).then(|| Misfit {
        verdict: Verdict::Warn,
        what: format!(
            "it has only {count} outstanding reads, fewer than {ENOUGH_READS}: reads of GPU memory \
             may not reach full bandwidth"
        ),
        set: format!("ADVANCED_PCI_SETTINGS=1 MAX_ACC_OUT_READ={wanted}"),
    })
}

fn writes(settings: &Settings) -> Option<Misfit> {
    let is_forced = settings.value("PCI_WR_ORDERING") == Some("force_relax");
    is_forced.then(|| Misfit {
        verdict: Verdict::Info,
        what: "its writes are relaxed in every memory region, not only where a program asked: one \
               that polls memory for the end of a message may read it too early"
            .into(),
        set: "PCI_WR_ORDERING=0".into(),
    })
}

/// Returns where the register was read, the check of it says more.
fn ats(context: &Context<'_>, device: &RdmaDevice, settings: &Settings) -> Option<Misfit> {
    let function = device.function.as_ref().ok().copied();
    let is_read = function
        .and_then(|bdf| context.function(bdf))
        .is_some_and(|function| function.ats.is_ok());
    let is_on = settings.value("ATS_ENABLED") == Some("True");
    (is_on && !is_read).then(|| Misfit {
        verdict: Verdict::Info,
        what: "ATS is on, which only a guest with a GPU needs".into(),
        set: "ATS_ENABLED=0".into(),
    })
}

fn roce(settings: &Settings, device: &RdmaDevice) -> Option<Misfit> {
    let is_off = settings.value("ROCE_CONTROL") == Some("ROCE_DISABLE");
    let mut ports = device.ports.iter().map(|port| port.number);
    (is_off && ports.any(|port| settings.layer(port) == Some("Ethernet"))).then(|| Misfit {
        verdict: Verdict::Fail,
        what: "RoCE is off in the firmware: an Ethernet port has no RDMA".into(),
        set: "ROCE_CONTROL=2".into(),
    })
}

fn layer(settings: &Settings, port: &gdr_node::RdmaPort) -> Option<Misfit> {
    let number = port.number;
    let (next, now) = (settings.layer(number)?, port.link_layer.as_ref().ok()?);
    let kind = match now.as_str() {
        "InfiniBand" => 1,
        "Ethernet" => 2,
        _ => return None,
    };
    (next != now).then(|| Misfit {
        verdict: Verdict::Warn,
        what: format!("port {number} is {now} and becomes {next} at the next boot"),
        set: format!("LINK_TYPE_P{number}={kind}"),
    })
}

#[cfg(test)]
mod tests {
    use gdr_node::import::{Assembled, Assembly};

    use super::*;
    use crate::checks::fixture::*;

    const IBSTAT: &str = "CA 'mlx5_0'\n\tCA type: MT4123\n\tPort 1:\n\t\tState: Active\n\
        \t\tLink layer: InfiniBand\n";

    /// Returns what `mlxconfig -d mlx5_0 query` prints of a NIC of this type.
    fn printed(model: &str, settings: &[&str]) -> String {
        format!(
            "Device #1:\n----------\n\nDevice type:    {model}\nName:           X_Ax\n\
             Device:         mlx5_0\n\nConfigurations:          Next Boot\n         {}\n",
            settings.join("\n         ")
        )
    }

    /// Returns the only finding about a node that these texts describe.
    fn found(texts: &[&str]) -> Finding {
        let mut assembly = Assembly::default();
        for text in texts {
            assembly.add("log", text.as_bytes()).unwrap();
        }
        let Ok(Assembled::Node {
            source, inventory, ..
        }) = assembly.finish()
        else {
            panic!("{texts:?}");
        };
        let mut findings = CHECK.run(&Context::new(source.as_ref(), &inventory));
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }

    fn of_settings(settings: &[&str]) -> Finding {
        found(&[&printed("ConnectX6", settings)])
    }

    fn commands(finding: &Finding) -> Vec<String> {
        let actions = finding.fixes.iter().flat_map(|fix| &fix.actions);
        actions.filter_map(Action::command).collect()
    }

    #[test]
    fn good_settings_pass_and_have_no_remedy() {
        for reads in ["0", "44", "128"] {
            let reads = format!("MAX_ACC_OUT_READ   {reads}");
            let good = of_settings(&[
                "ADVANCED_PCI_SETTINGS   True(1)",
                &reads,
                "PCI_WR_ORDERING   per_mkey(0)",
                "ATS_ENABLED   False(0)",
                "ROCE_CONTROL   ROCE_ENABLE(2)",
                "LINK_TYPE_P1   ETH(2)",
            ]);
            assert_eq!((good.verdict, commands(&good).len()), (Pass, 0), "{good:?}");
        }
    }

    #[test]
    fn each_bad_setting_is_named_with_its_remedy() {
        #[rustfmt::skip]
        let table: [(&[&str], Verdict, &str, &str); 5] = [
            (&["MAX_ACC_OUT_READ 16"], Warn, "outstanding reads",
             "ADVANCED_PCI_SETTINGS=1 MAX_ACC_OUT_READ=44"),
            (&["ADVANCED_PCI_SETTINGS False(0)"], Info, "hidden", "ADVANCED_PCI_SETTINGS=1"),
            (&["PCI_WR_ORDERING force_relax(1)"], Info, "relaxed", "PCI_WR_ORDERING=0"),
            (&["ATS_ENABLED True(1)"], Info, "ATS is on", "ATS_ENABLED=0"),
            (&["LINK_TYPE_P1 ETH(2)", "ROCE_CONTROL ROCE_DISABLE(1)"], Fail, "RoCE is off",
             "ROCE_CONTROL=2"),
        ];
        for (settings, verdict, named, set) in table {
            let finding = of_settings(settings);
            assert_eq!(finding.verdict, verdict, "{finding:?}");
            assert!(finding.summary.contains(named), "{finding:?}");
            assert_eq!(
                commands(&finding),
                [format!("mlxconfig -d mlx5_0 set {set}")]
            );
        }
    }

    #[test]
    fn several_bad_settings_have_one_remedy() {
        let finding = of_settings(&["MAX_ACC_OUT_READ 16", "ATS_ENABLED True(1)"]);
        assert_eq!(finding.verdict, Warn);
        let line =
            "mlxconfig -d mlx5_0 set ADVANCED_PCI_SETTINGS=1 MAX_ACC_OUT_READ=44 ATS_ENABLED=0";
        assert_eq!(commands(&finding), [line]);
    }

    #[test]
    fn connectx7_gets_the_automatic_limit() {
        let finding = found(&[&printed("ConnectX7", &["MAX_ACC_OUT_READ 16"])]);
        let line = "mlxconfig -d mlx5_0 set ADVANCED_PCI_SETTINGS=1 MAX_ACC_OUT_READ=0";
        assert_eq!(commands(&finding), [line]);
    }

    #[test]
    fn a_port_that_changes_its_link_layer_at_the_next_boot_is_a_warning() {
        let next = printed("ConnectX6", &["LINK_TYPE_P1 ETH(2)"]);
        let columns = printed("ConnectX6", &["* LINK_TYPE_P1 IB(1) IB(1) ETH(2)"]);
        for texts in [[IBSTAT, &next].as_slice(), &[&next, IBSTAT], &[&columns]] {
            let finding = found(texts);
            assert_eq!(finding.verdict, Warn, "{finding:?}");
            assert_eq!(
                commands(&finding),
                ["mlxconfig -d mlx5_0 set LINK_TYPE_P1=1"]
            );
        }
        let same = printed("ConnectX6", &["LINK_TYPE_P1 IB(1)"]);
        assert_eq!(found(&[IBSTAT, &same]).verdict, Pass);
    }

    #[test]
    fn it_is_skipped_where_mlxconfig_was_not_captured() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Skip]);
    }

    #[test]
    fn where_the_register_of_ats_was_read_its_setting_is_not_judged_again() {
        let path = virtual_path::nic_settings("mlx5_0");
        let node = example::healthy().file(&path, "ATS_ENABLED True(1)\n");
        assert_eq!(verdicts(&CHECK, &node), [Pass]);
        let unread = example::edit(node, example::NICS[0], |space| {
            space.header_only();
        });
        assert_eq!(verdicts(&CHECK, &unread), [Info]);
    }
}
