//! The platforms on which some fixes cannot be made.

use super::{Action, Fix, Site};
use crate::context::Context;

/// A machine on which not every fix can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Platform {
    /// Every fix can be made.
    Ordinary,
    /// A guest of a hypervisor: its cards are on the host.
    Guest,
    /// A DGX Spark or another machine with a GB10: its NIC is soldered, and `nvidia_peermem` does
    /// not support its GPU.
    Spark,
}

impl Platform {
    /// Returns the platform of a node, as far as it is known.
    pub(crate) fn of(context: &Context<'_>) -> Self {
        if context.is_guest() {
            Self::Guest
        } else if context.is_spark() {
            Self::Spark
        } else {
            Self::Ordinary
        }
    }

    /// Takes away the fixes that cannot be made here, and says where the others have to be.
    pub(crate) fn suit(self, fixes: &mut Vec<Fix>) {
        match self {
            Self::Ordinary => {}
            Self::Guest => {
                for action in (fixes.iter_mut())
                    .filter(|fix| fix.site == Site::Hardware)
                    .flat_map(|fix| &mut fix.actions)
                {
                    if let Action::Manual { text } = action {
                        *text = format!("on the host of this virtual machine: {text}");
                    }
                }
            }
            Self::Spark => {
                fixes.retain(|fix| {
                    fix.site != Site::Hardware && !fix.actions.iter().any(is_peermem)
                });
            }
        }
    }
}

fn is_peermem(action: &Action) -> bool {
    match action {
        Action::LoadModule { module } => module == "nvidia_peermem",
        Action::WriteFile { content, .. } => content.contains("nvidia_peermem"),
        Action::Command { line } => line.contains("modprobe nvidia_peermem"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_no_slots_and_a_spark_no_peer_memory_module() {
        let all = || {
            vec![
                Fix::hardware("Move it", "move the card"),
                Fix::now("Load it", Action::load("nvidia_peermem")),
                Fix::user("Set it", "export NCCL_DEBUG=INFO"),
            ]
        };
        let titles = |platform: Platform| {
            let mut fixes = all();
            platform.suit(&mut fixes);
            fixes
                .into_iter()
                .map(|fix| fix.actions[0].to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(titles(Platform::Ordinary)[0], "move the card");
        assert_eq!(
            titles(Platform::Guest)[0],
            "on the host of this virtual machine: move the card"
        );
        assert_eq!(titles(Platform::Spark), ["export NCCL_DEBUG=INFO"]);
    }
}
