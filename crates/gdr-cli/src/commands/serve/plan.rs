//! Objects of a command line, each with its content.

use anyhow::Result;
use gdr_object::{ObjectName, Shape};

use crate::exit::UsageError;
use crate::object_content::ContentReader;
use crate::object_spec::{ContentSource, ContentSpec, ObjectSpec, row};

/// An object to make.
#[derive(Debug)]
pub(super) struct Plan<'a> {
    pub(super) spec: &'a ObjectSpec,
    content: Option<&'a ContentSource>,
}

impl<'a> Plan<'a> {
    /// Assigns contents to objects.
    pub(super) fn make(
        objects: &'a [ObjectSpec],
        contents: &'a [ContentSpec],
    ) -> Result<Vec<Self>, UsageError> {
        let mut plans: Vec<Self> = Vec::new();
        for spec in objects {
            if plans.iter().any(|plan| plan.spec.name == spec.name) {
                return usage(format!("two objects have the name {}", spec.name));
            }
            plans.push(Self {
                spec,
                content: None,
            });
        }
        let mut has_stdin = false;
        for ContentSpec { name, source } in contents {
            let plan = Self::of(&mut plans, name.as_ref(), source)?;
            let name = &plan.spec.name;
            if let Some(other) = plan.content.replace(source) {
                return usage(format!(
                    "--publish-from names both {other} and {source} for {name}: choose one of them"
                ));
            }
            if *source == ContentSource::Stdin && std::mem::replace(&mut has_stdin, true) {
                return usage("standard input can be the content of only one object".to_owned());
            }
        }
        for Self { spec, content } in &plans {
            if spec.shape.is_none() && content.is_none() {
                return usage(format!(
                    "the size of {} is unknown: add size=SIZE or shape=SHAPE, or use \
                     --publish-from",
                    spec.name
                ));
            }
        }
        Ok(plans)
    }

    /// Returns the plan of the object that a content is for.
    fn of<'b>(
        plans: &'b mut [Self],
        name: Option<&ObjectName>,
        source: &ContentSource,
    ) -> Result<&'b mut Self, UsageError> {
        let all = plans.len();
        let found = match name {
            Some(name) => plans.iter_mut().find(|plan| plan.spec.name == *name),
            None => plans.first_mut().filter(|_| all == 1),
        };
        found.ok_or_else(|| {
            UsageError(match name {
                Some(name) => format!("--publish-from names {name}, but no --object has this name"),
                None => {
                    format!("--publish-from {source} does not say which of the {all} objects it is for: use NAME=FILE")
                }
            })
        })
    }

    /// Returns the shape of the object, and its content.
    pub(super) fn open(&self) -> Result<(Shape, Option<ContentReader>)> {
        let mut content = self.content.map(ContentReader::open).transpose()?;
        let shape = match (&self.spec.shape, &mut content) {
            (Some(shape), _) => shape.clone(),
            (None, Some(content)) => row(content.measure()?, self.spec.element)?,
            // `make` refuses it.
            (None, None) => return Err(UsageError("the size is unknown".to_owned()).into()),
        };
        Ok((shape, content))
    }
}

fn usage<T>(what: String) -> Result<T, UsageError> {
    Err(UsageError(what))
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn plan(objects: &[&str], contents: &[&str]) -> Result<Vec<Option<String>>, String> {
        let objects: Vec<ObjectSpec> = objects.iter().map(|it| it.parse().unwrap()).collect();
        let contents: Vec<ContentSpec> = contents.iter().map(|it| it.parse().unwrap()).collect();
        let plans = Plan::make(&objects, &contents).map_err(|error| error.to_string())?;
        let content = |plan: &Plan<'_>| plan.content.map(ToString::to_string);
        Ok(plans.iter().map(content).collect())
    }

    #[test]
    fn contents_find_their_objects() {
        let two = ["name=a,size=1", "name=b"];
        let of_b = plan(&two, &["b=file"]).unwrap();
        assert_eq!(of_b, [None, Some("file".to_owned())]);
        let only = plan(&["name=b"], &["-"]).unwrap();
        assert_eq!(only, [Some("standard input".to_owned())]);
    }

    #[test]
    fn contradictions_are_named() {
        let two = ["name=a,size=1", "name=b,size=1"];
        for (objects, contents, words) in [
            (&two[..], &["file"][..], "which of the 2 objects"),
            (&two, &["c=file"], "names c, but no --object"),
            (&two, &["a=x", "a=y"], "names both x and y for a"),
            (&two, &["a=-", "b=-"], "only one object"),
            (&["name=a"], &[], "the size of a is unknown"),
            (&["name=a,size=1", "name=a,size=2"], &[], "two objects"),
        ] {
            let error = plan(objects, contents).unwrap_err();
            assert_contains!(error, words);
        }
    }
}
