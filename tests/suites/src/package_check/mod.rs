//! `cargo xtask package --check`: installs, uses and removes the packages in roots of distributions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

mod dockerfile;
mod root;

use anyhow::{Context, bail, ensure};

use self::dockerfile::Dockerfile;
use self::root::Root;
use xtask_build::package::Architecture;
use xtask_build::package::{Kind, Package, VERSION};
use xtask_build::packages::{Apt, cache, once};
use xtask_build::results::{Outcome, Results, Unavailable};
use xtask_build::tools::is_installed;
use xtask_build::workspace::{root, target};

/// Tools in the roots in which manual pages, completions and a compiler are used.
const TOOLS: [&str; 6] = [
    "bash-completion",
    "gcc",
    "libc6-dev",
    "man-db",
    "pkg-config",
    "zsh",
];

/// Printed by `gdr loopback` without a GPU.
const SIMULATED: &str = "SIMULATED";

/// Checks what can be checked here, and names the rest.
pub fn run(packages: &[Package]) -> anyhow::Result<ExitCode> {
    let mut results = Results::default();
    let of = |kind, architecture| -> Vec<&Path> {
        let those = packages.iter().filter(move |package: &&Package| {
            package.kind == kind && package.architecture == architecture
        });
        those.map(|package| &*package.file).collect()
    };
    let mut check = |name: &str, files: Vec<&Path>, check: fn(&[&Path]) -> anyhow::Result<()>| {
        if !files.is_empty() {
            results.check(name, || match check(&files) {
                Ok(()) => Ok(Outcome::Passed),
                Err(error) => Outcome::of_error(error),
            });
        }
    };
    if let Some(host) = Architecture::of_this_machine() {
        let debs = of(Kind::Deb, host);
        check(
            "Debian packages in a bare Debian 12",
            debs.clone(),
            bare_debian,
        );
        check(
            "Debian packages with a compiler and manual pages",
            debs.clone(),
            used_debian,
        );
        check(
            "libgdrapi2 in place of NVIDIA's libgdrapi",
            debs,
            replaced_library,
        );
        check(
            "the archive on Debian 11, which has glibc 2.31",
            of(Kind::Tar, host),
            archive,
        );
        check(
            "the steps of the archive's Dockerfile",
            of(Kind::Tar, host),
            image,
        );
        check(
            "RPM packages, installed and removed",
            of(Kind::Rpm, host),
            rpms,
        );
        check(
            "RPM packages by dnf, with what they need",
            of(Kind::Rpm, host),
            resolved_rpms,
        );
    }
    for architecture in Architecture::ALL {
        let name = |what: &str| format!("{what}, {}", architecture.name());
        check(&name("lintian"), of(Kind::Deb, architecture), lintian);
        check(&name("rpmlint"), of(Kind::Rpm, architecture), rpmlint);
    }
    check(
        "the archive on aarch64, emulated",
        of(Kind::Tar, Architecture::Arm),
        emulated,
    );
    Ok(results.close())
}

/// Checks that the packages need nothing that is not in a minimal Debian, and their removal leaves nothing.
fn bare_debian(debs: &[&Path]) -> anyhow::Result<()> {
    let root = Root::debian("bookworm", &[])?;
    let before = root.files()?;
    root.add(debs)?;
    root.run("dpkg --install /tmp/*.deb")?;
    let printed = root.run("gdr loopback; gdr doctor || test $? -le 3; gdr run --print-env")?;
    contains(
        &printed,
        &[SIMULATED, "PASS", "does not apply", "libgdr-verbs.so"],
    )?;
    root.run("dpkg --purge gdr libgdrapi-dev libgdrapi2")?;
    same_files(&before, &root.files()?)
}

/// Checks what users of a workstation have: manual pages, completions, and a C program by pkg-config.
fn used_debian(debs: &[&Path]) -> anyhow::Result<()> {
    let root = Root::debian("bookworm", &TOOLS)?;
    root.add(debs)?;
    root.run("dpkg --install /tmp/*.deb")?;
    contains(
        &root.run("man gdr-doctor; man gdrcopy_copybw")?,
        &["EXIT STATUS", "gdrcopy_copybw"],
    )?;
    let completed = root.run(
        "cat > /tmp/complete <<'END'\n\
         . /usr/share/bash-completion/bash_completion\n\
         for line in 'gdr doctor --only acs.' 'gdr --backend s' 'gdrcopy_copybw --back'; do\n\
             COMP_WORDS=($line) COMP_LINE=$line COMP_POINT=${#line}\n\
             COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) COMPREPLY=()\n\
             _completion_loader ${COMP_WORDS[0]} || true\n\
             _${COMP_WORDS[0]} ${COMP_WORDS[0]} \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"\n\
             echo \"${COMPREPLY[@]}\"\n\
         done\n\
         END\n\
         bash /tmp/complete\n\
         zsh -c 'autoload -U compinit && compinit -u && autoload +X _gdr && whence -w _gdr'",
    )?;
    contains(&completed, &["acs.path", "--backend", "_gdr: function"])?;
    let compiled = root.run(
        "cd /tmp; cc -Wall -Werror -o program \
         /usr/share/doc/libgdrapi-dev/examples/write_and_read.c \
         $(pkg-config --cflags --libs gdrapi) -ldl\n\
         GDR_BACKEND=sim ./program",
    )?;
    contains(&compiled, &["read back"])
}

/// Checks that a package with the names and the file of NVIDIA's gives way, and a package that depends on it stays.
fn replaced_library(debs: &[&Path]) -> anyhow::Result<()> {
    let root = Root::debian("bookworm", &[])?;
    root.add(debs)?;
    root.run(
        "lib=usr/lib/$(uname -m)-linux-gnu\n\
         make() { mkdir -p /tmp/$1/DEBIAN /tmp/$1/$lib; touch /tmp/$1/$lib/$1\n\
         printf 'Package: %s\\nVersion: 2.5-1\\nArchitecture: all\\nMaintainer: n <n@n.n>\\n%s\\n\
         Description: a stand-in\\n' $1 \"$2\" > /tmp/$1/DEBIAN/control; }\n\
         make libgdrapi 'Section: libs'\n\
         make program 'Depends: libgdrapi (>= 2.0)'\n\
         touch /tmp/libgdrapi/$lib/libgdrapi.so.2\n\
         for name in libgdrapi program; do dpkg-deb --build /tmp/$name /tmp/$name.stand-in; done\n\
         dpkg --install /tmp/*.stand-in\n\
         dpkg --install /tmp/libgdrapi2_*.deb\n\
         test -s /$lib/libgdrapi.so.2\n\
         ! dpkg --status libgdrapi | grep -q 'ok installed'\n\
         dpkg --audit | (! grep .)\n\
         dpkg --status program | grep 'ok installed'",
    )?;
    Ok(())
}

/// Checks that the archive starts where it is unpacked, is installed and removed, with the oldest glibc at hand.
fn archive(archives: &[&Path]) -> anyhow::Result<()> {
    let root = Root::debian("bullseye", &[])?;
    let before = root.files()?;
    root.add(archives)?;
    let printed = root.run(
        "cd /tmp; tar xzf gdr-*.tar.gz; cd gdr-*-linux\n\
         bin/gdr loopback; bin/gdrcopy_copylat --help; bin/gdr run --print-env\n\
         ./install.sh; gdr version\n\
         grep ExecStart=/usr/local/ /usr/local/lib/systemd/system/gdr-doctor.service\n\
         ./install.sh > /dev/null\n\
         mkdir -p /var/lib/prometheus/node-exporter\n\
         /usr/local/libexec/gdr/gdr-textfile; cat /var/lib/prometheus/node-exporter/gdr.prom\n\
         rm -r /var/lib/prometheus\n\
         ./install.sh --uninstall",
    )?;
    contains(
        &printed,
        &[
            SIMULATED,
            "PASS",
            "gdr_doctor_timestamp_seconds",
            "is removed",
        ],
    )?;
    same_files(&before, &root.files()?)
}

/// Runs the steps of the Dockerfile, one by one, in a root in place of its base image; the image has gdr and libgdrapi,
/// and nothing of the archive's folder.
fn image(archives: &[&Path]) -> anyhow::Result<()> {
    let root = Root::debian("bookworm", &[])?;
    root.add(archives)?;
    root.run("cd /tmp; tar xzf gdr-*.tar.gz; rm gdr-*.tar.gz")?;
    let text = root.run("cat /tmp/gdr-*-linux/Dockerfile")?;
    let Dockerfile { folder, scripts } = Dockerfile::parse(&text)?;
    root.run(&format!("mv /tmp/gdr-*-linux {folder}"))?;
    let (command, steps) = scripts.split_last().context("no CMD")?;
    for step in steps {
        root.run(step)?;
    }
    root.run(&format!("{command} || test $? -le 3; test ! -e {folder}"))?;
    contains(
        &root.run("gdr loopback; ldconfig --print-cache")?,
        &[SIMULATED, "PASS", "=> /usr/local/lib/libgdrapi.so.2"],
    )
}

/// Installs RPM packages with rpm in a root without its database, thus without dependencies.
fn rpms(rpms: &[&Path]) -> anyhow::Result<()> {
    need("rpm", "apt-get install rpm")?;
    let root = rpm_root()?;
    let before = root.files()?;
    let rpm = |arguments: &[&str]| -> anyhow::Result<String> {
        let mut command = Command::new("rpm");
        command
            .arg("--root")
            .arg(root.folder())
            .args(["--dbpath", "/var/lib/rpm"]);
        command.args(arguments);
        printed(command)
    };
    let files: Vec<_> = rpms.iter().map(|file| file.to_string_lossy()).collect();
    let mut install = vec!["--install", "--nodeps"];
    install.extend(files.iter().map(|file| &**file));
    rpm(&install)?;
    contains(
        &root.run("gdr loopback; gdr run --print-env")?,
        &[SIMULATED, "/usr/lib64/gdr"],
    )?;
    rpm(&["--erase", "gdr", "libgdrapi-devel", "libgdrapi2"])?;
    same_files(&before, &root.files()?)?;
    for (file, path) in files.iter().zip(rpms) {
        let listed = printed(query(path, "--list"))?;
        ensure!(
            listed.lines().all(|line| line.starts_with("/usr/")),
            "{file}: {listed}"
        );
        let needed = printed(query(path, "--requires"))?;
        let foreign = needed.lines().find(|line| !is_of_the_system(line));
        ensure!(foreign.is_none(), "{file} needs {foreign:?}");
    }
    Ok(())
}

/// Creates a root with the folders of the package `filesystem` of RPM's distributions.
fn rpm_root() -> anyhow::Result<Root> {
    let root = Root::debian("bullseye", &[])?;
    root.run(
        "cd /usr; mkdir -p lib64/pkgconfig share/fish/vendor_completions.d share/licenses \
         share/zsh/site-functions",
    )?;
    Ok(root)
}

/// Checks that dnf finds the packages' requirements among the names that a distribution provides, replaces NVIDIA's
/// package of the same library where it may, and removes everything. One package stands for the distribution, with the
/// names that rpm finds in the libraries of the root.
fn resolved_rpms(rpms: &[&Path]) -> anyhow::Result<()> {
    need("dnf", "apt-get install dnf")?;
    need("createrepo_c", "apt-get install createrepo-c")?;
    let root = rpm_root()?;
    let repository = target().join("packaging/repository");
    if repository.exists() {
        fs::remove_dir_all(&repository)?;
    }
    fs::create_dir_all(&repository)?;
    for file in rpms {
        let name = file.file_name().context("a package without a name")?;
        fs::copy(file, repository.join(name))?;
    }
    let provided = provided_by(&root)?;
    let provided: Vec<_> = provided
        .lines()
        .chain(["/bin/sh", "/sbin/ldconfig", "/usr/bin/pkg-config"])
        .collect();
    stand_in("distribution", &provided, &repository)?;
    stand_in("gdrcopy", &[], &repository)?;
    let mut index = Command::new("createrepo_c");
    index.arg("--quiet").arg(&repository);
    printed(index)?;
    // This machine's settings do not apply.
    let settings = repository.join("dnf.conf");
    fs::write(&settings, "")?;
    let dnf = |arguments: &[&str]| -> anyhow::Result<String> {
        let mut command = Command::new("dnf");
        command
            .arg("--installroot")
            .arg(root.folder())
            .arg(format!("--repofrompath=gdr,{}", repository.display()))
            .arg(format!("--config={}", settings.display()))
            .args(["--repo=gdr", "--releasever=8"])
            .args(["--nogpgcheck", "--assumeyes"])
            .args(arguments);
        printed(command)
    };
    dnf(&["install", "gdrcopy", "distribution"])?;
    let before = root.files()?;
    dnf(&["install", "--allowerasing", "gdr", "libgdrapi-devel"])?;
    contains(
        &root.run("gdr loopback; gdr run --print-env; ls -L /usr/lib64/libgdrapi.so.2")?,
        &[SIMULATED, "/usr/lib64/gdr", "libgdrapi.so.2"],
    )?;
    ensure!(
        !dnf(&["list", "--installed"])?.contains("gdrcopy"),
        "the package of the same library stays"
    );
    dnf(&["remove", "gdr", "libgdrapi-devel", "libgdrapi2"])?;
    same_files(&before, &root.files()?)
}

/// Returns the names that rpm's generator of dependencies finds in the libraries of glibc in a root.
fn provided_by(root: &Root) -> anyhow::Result<String> {
    // The loader's links in other folders are absolute, and would lead out of the root.
    let listed = root.run(
        "cd /; find usr/lib/*-linux-gnu -name 'libc.so.6' -o -name 'libm.so.6' -o -name 'libdl.so.2' \
         -o -name 'libpthread.so.0' -o -name 'ld-linux-*.so.*'",
    )?;
    let mut provided = String::new();
    for file in listed.lines() {
        let mut command = Command::new("/usr/lib/rpm/elfdeps");
        command.arg("--provides").arg(root.folder().join(file));
        provided += &printed(command)?;
    }
    // A feature of the loader that no library lists.
    provided += "rtld(GNU_HASH)\n";
    Ok(provided)
}

/// Makes a package without files that provides these names.
fn stand_in(name: &str, provided: &[&str], repository: &Path) -> anyhow::Result<()> {
    let folder = target().join("packaging/stand-in");
    fs::create_dir_all(&folder)?;
    let spec = folder.join(name).with_extension("spec");
    let provides: String = provided
        .iter()
        .map(|provided| format!("Provides: {provided}\n"))
        .collect();
    fs::write(
        &spec,
        format!(
            "Name: {name}\nVersion: 1\nRelease: 1\nSummary: A stand-in\nLicense: MIT\n\
             BuildArch: noarch\n{provides}%description\nA stand-in.\n%files\n"
        ),
    )?;
    let mut command = Command::new("rpmbuild");
    command
        .arg("-bb")
        .arg(format!("--define=_topdir {}", folder.display()))
        .arg(format!("--define=_rpmdir {}", repository.display()))
        .arg(&spec);
    printed(command)?;
    Ok(())
}

/// Returns whether every distribution with RPM provides this: glibc, a shell, a feature of rpm, or gdr's own names.
fn is_of_the_system(requirement: &str) -> bool {
    let known = [
        "libc.so.6(",
        "libm.so.6(",
        "libdl.so.2(",
        "libpthread.so.0(",
        "ld-linux-",
    ];
    let others = [
        "rpmlib(",
        "/bin/sh",
        "/sbin/ldconfig",
        "/usr/bin/pkg-config",
        "libgdrapi",
        "rtld(",
    ];
    known
        .iter()
        .chain(&others)
        .any(|name| requirement.starts_with(name))
}

fn query(file: &Path, what: &str) -> Command {
    let mut command = Command::new("rpm");
    command.args(["--query", "--package", what]).arg(file);
    command
}

fn lintian(debs: &[&Path]) -> anyhow::Result<()> {
    need("lintian", "apt-get install lintian")?;
    let mut command = Command::new("lintian");
    command
        .args(["--fail-on", "error,warning", "--allow-root"])
        .args(debs);
    print!("{}", printed(command)?);
    Ok(())
}

fn rpmlint(rpms: &[&Path]) -> anyhow::Result<()> {
    need("rpmlint", "apt-get install rpmlint")?;
    let mut command = Command::new("rpmlint");
    command
        .arg("--config")
        .arg(root().join("packaging/rpm/rpmlint.toml"))
        .args(rpms);
    print!("{}", printed(command)?);
    Ok(())
}

/// Checks that the programs for aarch64 run by QEMU's emulation of user programs, with Debian's libraries.
fn emulated(archives: &[&Path]) -> anyhow::Result<()> {
    need("qemu-aarch64-static", "apt-get install qemu-user-static")?;
    let libraries = once(&cache().join("roots/arm64"), "libc6:arm64", |folder| {
        let apt = Apt::fetch_lists_for(&folder.join("apt"), "arm64")?;
        apt.unpack(&["libc6:arm64".to_owned()], folder)?;
        Ok(fs::remove_dir_all(folder.join("apt"))?)
    })?;
    let folder = target().join("packaging/emulated");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    let [archive] = archives else {
        bail!("not one archive")
    };
    let mut tar = Command::new("tar");
    tar.arg("-xzf")
        .arg(archive)
        .arg("--strip-components=1")
        .arg("-C")
        .arg(&folder);
    printed(tar)?;
    let gdr = |arguments: &[&str]| {
        let mut command = Command::new("qemu-aarch64-static");
        command
            .arg("-L")
            .arg(&libraries)
            .arg(folder.join("bin/gdr"))
            .args(arguments);
        printed(command)
    };
    // The emulator lacks IP_MTU, which `gdr loopback` reads, and its children inherit mappings that they would not
    // inherit from the kernel, which `gdr sanity` reports.
    contains(&gdr(&["version"])?, &[VERSION])?;
    contains(&gdr(&["doctor", "list"])?, &["acs.path"])?;
    contains(
        &gdr(&["copylat", "--simulate", "-s", "4096", "-w", "1", "-r", "1"])?,
        &[SIMULATED, "gdr_copy_from_mapping"],
    )
}

fn need(program: &str, remedy: &str) -> anyhow::Result<()> {
    if is_installed(program) {
        return Ok(());
    }
    Err(Unavailable::new(format!("{program} is not installed: {remedy}")).into())
}

/// Runs a program; returns what it prints.
fn printed(mut command: Command) -> anyhow::Result<String> {
    let name = PathBuf::from(command.get_program());
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("{} cannot be started", name.display()))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{text}{errors}{} failed ({})",
            name.display(),
            output.status
        );
    }
    Ok(text)
}

fn contains(text: &str, expected: &[&str]) -> anyhow::Result<()> {
    for part in expected {
        ensure!(text.contains(part), "{part:?} is not in:\n{text}");
    }
    Ok(())
}

fn same_files(before: &str, after: &str) -> anyhow::Result<()> {
    let left = after
        .lines()
        .filter(|line| !before.lines().any(|old| old == *line));
    let left: Vec<_> = left.collect();
    ensure!(left.is_empty(), "the removal leaves {left:?}");
    let lost = before
        .lines()
        .filter(|line| !after.lines().any(|new| new == *line));
    let lost: Vec<_> = lost.collect();
    ensure!(lost.is_empty(), "the removal takes {lost:?}");
    Ok(())
}
