"""What stands in front of the engines of a plan and watches them: nginx, Prometheus, Grafana."""
