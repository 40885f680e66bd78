"""What the running system says about itself: logs, metrics, metering. Import the module that is needed."""
