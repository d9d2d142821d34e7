"""What spark-submit starts. It is alone in its folder, which Python puts before all other modules."""
