//! The device files as seen by programs that run with the library in `LD_PRELOAD`.

#![allow(clippy::unwrap_used)]

#[path = "../library/built.rs"]
mod built;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use crate::built::libraries;

/// Returns a command that finds one device, at 127.0.0.1.
fn preloaded(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env("LD_PRELOAD", libraries().join("libgdr-verbs.so"))
        .env("GDR_NICS", "127.0.0.1")
        .env("LC_ALL", "C")
        .env_remove("GDR_LIBIBVERBS")
        .env_remove("GDR_VERBS_NEAR");
    command
}

fn text(output: &Output) -> String {
    assert!(
        output.status.success(),
        "{}: {}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the output of a shell and the programs that it starts.
fn shell(script: &str) -> String {
    text(&preloaded("sh").args(["-c", script]).output().unwrap())
}

/// Returns the compiled program of `program.c`.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("files-program");
        let made = program.with_extension(std::process::id().to_string());
        let status = Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-pthread", "-o"])
            .arg(&made)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/files/program.c"))
            .status();
        assert!(status.unwrap().success());
        std::fs::rename(made, &program).unwrap();
        program
    })
}

/// Runs a part of the program in an empty folder; returns its output.
fn printed(mut command: Command, name: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    text(&command.arg(name).arg(folder).output().unwrap())
}

/// Runs a part of the program with the library.
fn part(name: &str) {
    printed(preloaded(program()), name);
}

#[test]
fn a_thread_that_waits_in_open_is_cancelled() {
    part("cancelled");
}

#[test]
fn files_are_created_with_the_mode_of_the_call_and_errno_stays() {
    part("created");
}

#[test]
fn a_forked_child_and_the_program_that_it_becomes_read_files() {
    part("inherited");
}

#[test]
fn a_program_without_standard_files_opens_files_by_their_numbers() {
    part("closed");
}

#[test]
fn folders_of_the_kernel_are_listed_as_without_the_library() {
    part("foreign");
}

#[test]
fn unusual_paths_have_the_results_and_the_errno_that_they_have_without_the_library() {
    let (with, without) = (preloaded(program()), Command::new(program()));
    let (with, without) = (printed(with, "hostile"), printed(without, "hostile"));
    assert!(without.lines().count() > 1000, "{without}");
    for (with, without) in with.lines().zip(without.lines()) {
        assert_eq!(with, without);
    }
    assert_eq!(with.len(), without.len());
}

#[test]
fn a_program_in_another_root_without_standard_files_sees_the_files_of_that_root() {
    if printed(preloaded(program()), "changed-root") == "skipped\n" {
        skip::skip("user namespaces are not permitted");
    }
}

#[test]
fn relative_paths_are_found_in_a_folder_of_a_device() {
    part("inside");
}

#[test]
fn programs_of_every_system_list_and_read_the_files() {
    assert_eq!(
        shell("ls /sys/class/infiniband /dev/infiniband/uverbs0"),
        "/dev/infiniband/uverbs0\n\n/sys/class/infiniband:\ngdr0\n"
    );
    assert_eq!(
        shell("cat /sys/class/infiniband/gdr0/ports/1/link_layer"),
        "Ethernet\n"
    );
    assert_eq!(
        shell("echo /sys/class/infiniband/*/ports/*/state"),
        "/sys/class/infiniband/gdr0/ports/1/state\n"
    );
    assert_eq!(
        shell("cat < /sys/class/infiniband_verbs/uverbs0/ibdev"),
        "gdr0\n"
    );
    assert_eq!(
        shell("readlink -f /sys/class/infiniband/gdr0/device"),
        "/sys/devices/pciffff:00/ffff:ff:00.0\n"
    );
    assert_eq!(
        shell("find -L /sys/class/infiniband/gdr0/ports -name 'gid*' | sort"),
        "/sys/class/infiniband/gdr0/ports/1/gid_attrs\n/sys/class/infiniband/gdr0/ports/1/gids\n"
    );
    assert_eq!(
        shell("test -c /dev/infiniband/uverbs0 && test -r /dev/infiniband/uverbs0 && echo yes"),
        "yes\n"
    );
    // `ls -l` queries more than other programs, and prints what fails.
    let listed = preloaded("ls")
        .args(["-lLR", "/sys/class/infiniband/gdr0/ports"])
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&listed.stderr), "");
    assert!(text(&listed).contains("port_xmit_data"));
}

#[test]
fn a_folder_of_a_device_is_the_working_folder_of_a_process_and_of_its_children() {
    let class = "/sys/class/infiniband";
    // The queries that scripts of rdma-core make.
    assert_eq!(
        shell(&format!("cd {class} && echo * && cat gdr0/node_type")),
        "gdr0\n1: CA\n"
    );
    assert_eq!(
        shell(&format!(
            "cd {class}/gdr0/ports; echo *; cd 1; cat link_layer; test -r state && echo yes"
        )),
        "1\nEthernet\nyes\n"
    );
    assert_eq!(
        shell(&format!("cd -P {class}/gdr0; /bin/pwd")),
        "/sys/devices/pciffff:00/ffff:ff:00.0/infiniband/gdr0\n"
    );
    assert_eq!(
        shell(&format!(
            "cd {class}; ls; ls none 2>/dev/null; cd /proc/self; ls status; pwd"
        )),
        "gdr0\nstatus\n/proc/self\n"
    );
    // Files cannot be created there.
    assert_eq!(
        shell(&format!(
            "cd {class}; echo 2>/dev/null > file; test -e file || echo no"
        )),
        "no\n"
    );
}

#[test]
fn near_puts_the_devices_under_the_bridge_of_a_function() {
    let Some(near) = std::fs::read_dir("/sys/bus/pci/devices")
        .ok()
        .and_then(|mut all| all.next())
    else {
        skip::skip("this host has no PCI");
        return;
    };
    let folder = near.unwrap().path().canonicalize().unwrap();
    let near = folder.file_name().unwrap().to_str().unwrap();
    let mut command = preloaded("readlink");
    command
        .args(["-f", "/sys/class/infiniband/gdr0/device"])
        .env("GDR_VERBS_NEAR", near);
    let found = text(&command.output().unwrap());
    let found = Path::new(found.trim_end());
    assert_eq!(found.parent(), folder.parent());
    // NCCL treats the functions of a bus as one card.
    let bus = |path: &Path| path.file_name().unwrap().to_str().unwrap()[..7].to_owned();
    assert!(!Path::new("/sys/class/pci_bus").join(bus(found)).exists());
}

#[test]
fn every_function_that_is_replaced_is_one_of_the_c_library() {
    let script = format!("libc.{}.map", std::env::consts::ARCH);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let script = std::fs::read_to_string(script).unwrap();
    let mut node = String::new();
    let mut found = 0;
    for line in script.lines() {
        if let Some(name) = line.strip_suffix(" {") {
            node = name.to_owned();
        } else if node == "GDR_VERBS" {
            // These belong to the library that replaces libibverbs.
        } else if let Some(name) = line
            .strip_prefix("\t\t")
            .and_then(|it| it.strip_suffix(';'))
        {
            let c = |text: &str| std::ffi::CString::new(text).unwrap();
            // SAFETY: C strings.
            let address = unsafe {
                let handle = libc::dlopen(c"libc.so.6".as_ptr(), libc::RTLD_NOW);
                libc::dlvsym(handle, c(name).as_ptr(), c(&node).as_ptr())
            };
            // A C library older than 2.33 lacks some of them.
            assert!(!address.is_null() || node == "GLIBC_2.33", "{name}@{node}");
            found += 1;
        }
    }
    assert!(found > 50, "{found}");
}

#[test]
fn the_installed_libibverbs_does_not_take_the_devices_for_those_of_the_kernel() {
    let shadow = libraries().join("shadow/libibverbs.so.1");
    let looks = |hides: &str| {
        let source = format!(
            "import ctypes, os\n\
             shadow = ctypes.CDLL('{}')\n\
             preloaded = ctypes.CDLL(None)\n\
             {hides}\n\
             print(os.path.exists('/sys/class/infiniband/gdr0'))",
            shadow.display()
        );
        let output = preloaded("python3").args(["-c", &source]).output();
        output.ok().map(|output| text(&output))
    };
    let Some(shown) = looks("") else {
        skip::skip("there is no python3");
        return;
    };
    assert_eq!(shown, "True\n");
    // The library in place of libibverbs calls the functions of the preloaded one.
    assert_eq!(
        looks("preloaded.gdr_verbs_hide_files(1)").unwrap(),
        "False\n"
    );
}

#[test]
fn a_program_that_loads_libibverbs_by_name_lists_the_devices_and_sees_their_files() {
    for library in ["libgdr-verbs.so", "shadow/libibverbs.so.1"] {
        let source = format!(
            "import ctypes, os\n\
             listed = ctypes.c_int()\n\
             library = ctypes.CDLL('{}')\n\
             library.ibv_get_device_list.restype = ctypes.c_void_p\n\
             library.ibv_get_device_list(ctypes.byref(listed))\n\
             print(listed.value, os.path.exists('/sys/class/infiniband/gdr0'))",
            libraries().join(library).display()
        );
        let mut command = preloaded("python3");
        command.args(["-c", &source]).env("GDR_ONLY_SOFT", "1");
        match command.output() {
            Ok(output) => assert_eq!(text(&output), "1 True\n", "{library}"),
            Err(_) => skip::skip("there is no python3"),
        }
    }
}

#[test]
fn rdma_of_iproute2_shows_the_device() {
    if !Path::new("/usr/bin/rdma").exists() && !Path::new("/sbin/rdma").exists() {
        skip::skip("rdma of iproute2 is not installed");
        return;
    }
    assert_eq!(
        shell("rdma link show gdr0/1").trim_end(),
        "link gdr0/1 state ACTIVE physical_state LINK_UP netdev lo"
    );
    let devices = shell("rdma -j dev show");
    assert!(
        devices.contains(r#""ifname":"gdr0","node_type":"ca","fw":""#),
        "{devices}"
    );
    assert!(shell("rdma system show").starts_with("netns shared"));
    let refused = preloaded("sh")
        .args(["-c", "rdma dev set gdr0 name other"])
        .output()
        .unwrap();
    assert!(!refused.status.success());
}
