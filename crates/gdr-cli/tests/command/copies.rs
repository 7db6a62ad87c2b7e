//! The paths of copies: `gdr plan`, `gdr tune` and `--sweep`.

use super::*;

/// Runs gdr with profiles in this folder.
fn with_profiles(folder: &Path, line: &str) -> Output {
    clean(cargo_bin_cmd!("gdr"))
        .env("XDG_STATE_HOME", folder)
        .args(line.split(' '))
        .output()
        .unwrap()
}

#[test]
fn a_profile_that_was_measured_is_what_later_plans_are_by() {
    let folder = tempfile::tempdir().unwrap();
    let plan = |line: &str| {
        let output = with_profiles(folder.path(), line);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        stdout(&output)
    };
    let before = plan("plan --simulate");
    assert_contains!(before, "by built-in costs (simulated)");

    let dry = plan("tune --simulate -s 64 --dry-run");
    assert_contains!(dry, "no profile was written");
    assert_eq!(plan("plan --simulate"), before);

    let tuned = plan("tune --simulate -s 64");
    let file = tuned
        .lines()
        .find_map(|line| line.strip_prefix("profile: "));
    let file = Path::new(file.unwrap());
    assert!(file.starts_with(folder.path().join("gdr/copy")), "{tuned}");
    let after = plan("plan --simulate --json");
    let after: Value = serde_json::from_str(&after).unwrap();
    let costs = format!("profile {}", file.display());
    assert_eq!(after["costs"], Value::from(costs));

    std::fs::write(file, "no profile").unwrap();
    let refused = with_profiles(folder.path(), "plan --simulate");
    assert_eq!(code(&refused), 2);
    assert_contains!(stderr(&refused), "the first line is not", "{refused:?}");
}

#[test]
fn a_plan_marks_one_choice_for_each_kind_of_copy_among_what_is_allowed() {
    let plan = json("plan 64 1M --threads 1 --no-engine");
    let estimates = plan["estimates"].as_array().unwrap();
    let chosen: Vec<_> = estimates
        .iter()
        .filter(|row| row["chosen"] == true)
        .collect();
    assert_eq!(chosen.len(), 2 * 2 * 2);
    assert!(chosen.iter().all(|row| row["allowed"] == true));
    assert!(chosen.iter().all(|row| row["path"] == "cpu"));
}

#[test]
fn a_sweep_shows_every_path_and_the_choice_in_100_columns_and_as_a_picture() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("paths.svg");
    for tool in ["copylat", "copybw"] {
        let text = fine(&format!(
            "{tool} --sweep -s 4 --threads 8 --svg {}",
            svg.display()
        ));
        for words in [
            "to GPU, pageable memory",
            "from GPU, page-locked memory",
            "cuMemcpy",
        ] {
            assert_contains!(text, words);
        }
        let head = text.lines().find(|line| line.trim().starts_with("size"));
        for path in ["cpu", "cpu-2", "cpu-4", "cpu-8", "copy-engine"] {
            let mut columns = head.unwrap().split_whitespace();
            assert!(columns.any(|column| column == path), "{text}");
        }
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let picture = std::fs::read_to_string(&svg).unwrap();
        assert!(picture.contains("planned / fastest") && picture.contains("SIMULATED"));
    }
}

#[test]
fn options_of_the_tools_that_a_sweep_does_not_have_are_refused() {
    for line in [
        "copybw --sweep -l",
        "copybw --sweep -w 10",
        "copylat --sweep --against cuda",
        "copylat --threads 2",
    ] {
        assert_eq!(code(&simulated(line)), 64, "{line}");
    }
}
