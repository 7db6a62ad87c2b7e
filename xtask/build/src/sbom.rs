//! The software bill of materials of a release, in CycloneDX's JSON.

use serde_json::{Value, json};

use crate::dependencies::{Dependencies, Package};

/// Returns the document. It has neither time nor serial number, so it is the same for the same crates.
pub fn document(dependencies: &Dependencies, name: &str, version: &str) -> Value {
    let packages = dependencies.packages();
    let components: Vec<_> = packages.iter().copied().map(component).collect();
    let edges = packages.iter().map(|package| {
        let below: Vec<_> = dependencies
            .below(package)
            .into_iter()
            .map(Package::url)
            .collect();
        json!({"ref": package.url(), "dependsOn": below})
    });
    // Everything that is linked without being a dependency of another crate.
    let own = packages.iter().filter(|package| package.is_own());
    let own: Vec<_> = own.map(|package| package.url()).collect();
    let top = format!("pkg:github/gdr-rs/{name}@{version}");
    let mut graph = vec![json!({"ref": top, "dependsOn": own})];
    graph.extend(edges);
    json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": top,
                "name": name,
                "version": version,
                "purl": top,
                "licenses": [{"expression": "MIT OR Apache-2.0"}],
            },
        },
        "components": components,
        "dependencies": graph,
    })
}

fn component(package: &Package) -> Value {
    let mut component = json!({
        "type": "library",
        "bom-ref": package.url(),
        "name": package.name,
        "version": package.version,
        "purl": package.url(),
    });
    if let Some(licence) = &package.license {
        // `MIT/Apache-2.0` is how older crates write `MIT OR Apache-2.0`.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if let Some(description) = &package.description {
        component["description"] = description.trim().into();
    }
    if let Some(repository) = &package.repository {
        component["externalReferences"] = json!([{"type": "vcs", "url": repository}]);
    }
    if let Some(checksum) = &package.checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::package::PUBLISHED;

    #[test]
    fn every_crate_is_a_component_and_every_reference_is_defined() {
        let dependencies = Dependencies::of(&PUBLISHED, &[]).unwrap();
        let document = document(&dependencies, "gdr", "1.0.0");
        let components = document["components"].as_array().unwrap();
        let urls: Vec<_> = components
            .iter()
            .map(|it| it["purl"].as_str().unwrap())
            .collect();
        assert_eq!(urls.len(), dependencies.packages().len());
        assert!(
            urls.iter()
                .any(|url| url.starts_with("pkg:cargo/gdr-copy@"))
        );
        for edge in document["dependencies"].as_array().unwrap() {
            for below in edge["dependsOn"].as_array().unwrap() {
                assert!(urls.contains(&below.as_str().unwrap()), "{below}");
            }
        }
        let libc = components.iter().find(|it| it["name"] == "libc").unwrap();
        assert_eq!(libc["hashes"][0]["content"].as_str().unwrap().len(), 64);
    }
}
