//! What builds, installs, packages and documents this workspace.

#![allow(missing_docs, reason = "only `cargo xtask` uses it")]

pub mod bindings;
pub mod book;
pub mod dependencies;
pub mod documentation;
pub mod install;
pub mod install_command;
pub mod package;
pub mod packages;
pub mod picture;
pub mod python_environment;
pub mod release;
pub mod results;
pub mod sbom;
pub mod third_party;
pub mod tools;
pub mod verbs_library;
pub mod wheel;
pub mod workspace;
