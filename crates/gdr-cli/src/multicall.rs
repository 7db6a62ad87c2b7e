//! Being called by the name of one of GDRCopy's tools.

use std::ffi::OsString;
use std::path::Path;

/// GDRCopy's tools, and the subcommand that takes the same options.
const TOOLS: [(&str, &str); 5] = [
    ("gdrcopy_sanity", "sanity"),
    ("gdrcopy_copybw", "copybw"),
    ("gdrcopy_copylat", "copylat"),
    ("gdrcopy_apiperf", "apiperf"),
    ("gdrcopy_pplat", "pplat"),
];

/// The command line, with the subcommand put in where the program's name stands for one.
pub(crate) fn arguments(mut given: Vec<OsString>) -> Vec<OsString> {
    let name = given
        .first()
        .and_then(|program| Path::new(program).file_name());
    let tool = name.and_then(|name| TOOLS.iter().find(|(tool, _)| name == *tool));
    if let Some((_, subcommand)) = tool {
        given.insert(1, (*subcommand).into());
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tools_name_becomes_its_subcommand() {
        let given = |line: &str| arguments(line.split(' ').map(OsString::from).collect());
        assert_eq!(
            given("/usr/bin/gdrcopy_copybw -s 4"),
            ["/usr/bin/gdrcopy_copybw", "copybw", "-s", "4"]
        );
        assert_eq!(given("gdr sanity"), ["gdr", "sanity"]);
        assert_eq!(given("./gdrcopy_sanity"), ["./gdrcopy_sanity", "sanity"]);
        assert!(arguments(Vec::new()).is_empty());
    }
}
