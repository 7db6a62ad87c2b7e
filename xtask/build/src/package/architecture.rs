//! The architectures that packages are made for, and their names in each world.

use clap::ValueEnum;

/// An architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Architecture {
    /// 64-bit x86.
    #[value(name = "x86_64")]
    X86,
    /// 64-bit Arm.
    #[value(name = "aarch64")]
    Arm,
}

impl Architecture {
    pub const ALL: [Self; 2] = [Self::X86, Self::Arm];

    /// Returns the architecture of the machine that this runs on.
    pub fn of_this_machine() -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|architecture| architecture.name() == std::env::consts::ARCH)
    }

    /// Returns the name of the kernel, of Rust and of RPM.
    pub const fn name(self) -> &'static str {
        match self {
            Self::X86 => "x86_64",
            Self::Arm => "aarch64",
        }
    }

    /// Rust's target.
    pub fn target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// Debian's folder of libraries, which is GCC's name of the target, too.
    pub fn multiarch(self) -> String {
        format!("{}-linux-gnu", self.name())
    }

    /// Debian's name.
    pub const fn of_debian(self) -> &'static str {
        match self {
            Self::X86 => "amd64",
            Self::Arm => "arm64",
        }
    }
}
