//! The functions that a libibverbs exports, each with its version node.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// The list of the newest rdma-core that this crate was compared with: its release, and a line with version node and
/// name for each function.
const KEPT: &str = include_str!("rdma-core.txt");

/// The functions of a release.
pub(crate) struct List {
    pub(crate) release: String,
    pub(crate) functions: BTreeSet<Function>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) node: String,
}

impl Function {
    /// Returns whether only rdma-core's own libraries may call the function.
    pub(crate) fn is_private(&self) -> bool {
        self.node.starts_with("IBVERBS_PRIVATE_")
    }
}

impl List {
    pub(crate) fn kept() -> Self {
        let (release, lines) = KEPT.split_once('\n').unwrap();
        let function = |line: &str| {
            let (node, name) = line.split_once(' ').unwrap();
            Function {
                name: name.to_owned(),
                node: node.to_owned(),
            }
        };
        Self {
            release: release.to_owned(),
            functions: lines.lines().map(function).collect(),
        }
    }

    /// Returns the exports of a file, read by `readelf`, which comes with the linker.
    pub(crate) fn of_file(file: &Path, release: String) -> Self {
        let mut reader = Command::new("readelf");
        reader.args(["--dyn-syms", "--wide"]).arg(file);
        let output = reader.output().unwrap();
        assert!(output.status.success(), "{}", file.display());
        let text = String::from_utf8(output.stdout).unwrap();
        let functions = text.lines().filter_map(|line| {
            let mut fields = line.split_whitespace().skip(6);
            let (section, symbol) = (fields.next()?, fields.next()?);
            let (name, node) = symbol.split_once('@')?;
            let node = node.trim_start_matches('@');
            let exported = section != "UND" && node.starts_with("IBVERBS_") && name != node;
            exported.then(|| Function {
                name: name.to_owned(),
                node: node.to_owned(),
            })
        });
        Self {
            release,
            functions: functions.collect(),
        }
    }

    /// Returns whether the function belongs to the interface of 2005: its functions in `IBVERBS_1.0` call the functions
    /// in `IBVERBS_1.1` with the same names, and no current program uses them.
    fn is_of_2005(&self, function: &Function) -> bool {
        let newer = Function {
            node: "IBVERBS_1.1".to_owned(),
            ..function.clone()
        };
        function.node == "IBVERBS_1.0" && self.functions.contains(&newer)
    }

    /// Returns the functions that a library in place of this libibverbs must have.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &Function> {
        let functions = self.functions.iter();
        functions.filter(|function| !self.is_of_2005(function))
    }

    /// Returns the names of the functions that programs call.
    pub(crate) fn public(&self) -> BTreeSet<&str> {
        let needed = self.needed().filter(|function| !function.is_private());
        needed.map(|function| function.name.as_str()).collect()
    }
}
