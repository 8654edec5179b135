from setuptools import find_packages, setup

setup(
    name="my-agent",
    version="0.1.0",
    packages=find_packages(),
    install_requires=["langgraph>=0.6", "python-slugify"],
    python_requires=">=3.10",
)
