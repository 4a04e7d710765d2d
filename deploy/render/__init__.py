"""From a plan file to what every server runs: commands, scripts, containers, manifests."""
