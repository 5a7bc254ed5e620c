"""An architecture as a picture: boxes and arrows as data, drawn as SVG or as text."""
