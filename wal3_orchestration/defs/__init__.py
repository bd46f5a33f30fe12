"""The workflows: each module, or package with assets, checks and sensors, declares one as ``workflow``."""
